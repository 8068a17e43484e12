//! The prefix index: full pages by all tokens up to their end.

use std::collections::HashMap;
use std::ops::Range;

use xxhash_rust::xxh3::Xxh3;

use crate::error::Error;
use crate::zeros::zeros;

/// Sealed pages by key. A page's key is a 128-bit hash of its parent's key and its tokens; the first parent's is that
/// of a fingerprint and a salt. A hit compares the page's tokens, too, but all before it through the key alone, and so
/// fingerprint and salt. The hash, xxh3, is not collision-resistant: chance does not make equal keys, but whoever
/// chooses tokens or salts can.
#[derive(Debug, Clone)]
pub(crate) struct Prefix {
    page_size: usize,
    pages: HashMap<u128, u32>,
    /// By page: its key, or 0 if it is not sealed.
    keys: Vec<u128>,
    /// By slot: its token, where it is known.
    tokens: Vec<u32>,
}

/// The key of no tokens.
pub(crate) fn root(fingerprint: &str, salt: &[u8]) -> u128 {
    let mut hash = Xxh3::new();
    hash.update(&(fingerprint.len() as u64).to_le_bytes());
    hash.update(fingerprint.as_bytes());
    hash.update(salt);
    hash.digest128().max(1)
}

/// The key of a page of these tokens behind what `parent` is the key of. It is never 0.
pub(crate) fn child(parent: u128, tokens: &[u32]) -> u128 {
    let mut hash = Xxh3::new();
    hash.update(&parent.to_le_bytes());
    hash.update(bytemuck::cast_slice(tokens));
    hash.digest128().max(1)
}

impl Prefix {
    pub(crate) fn new(num_pages: usize, page_size: usize) -> Result<Self, Error> {
        Ok(Self { page_size, pages: HashMap::new(), keys: zeros(num_pages)?, tokens: zeros(num_pages * page_size)? })
    }

    fn slots(&self, page: u32) -> Range<usize> {
        page as usize * self.page_size..(page as usize + 1) * self.page_size
    }

    /// The tokens of a page.
    pub(crate) fn tokens(&self, page: u32) -> &[u32] {
        &self.tokens[self.slots(page)]
    }

    pub(crate) fn tokens_mut(&mut self, page: u32) -> &mut [u32] {
        let slots = self.slots(page);
        &mut self.tokens[slots]
    }

    /// The tokens by slot.
    pub(crate) fn slot_tokens(&self) -> &[u32] {
        &self.tokens
    }

    pub(crate) fn slot_tokens_mut(&mut self) -> &mut [u32] {
        &mut self.tokens
    }

    /// Puts a sealed page's key and tokens to another page.
    pub(crate) fn move_page(&mut self, src: u32, dst: u32) {
        let slots = self.slots(src);
        self.tokens.copy_within(slots, dst as usize * self.page_size);
        let key = std::mem::take(&mut self.keys[src as usize]);
        self.keys[dst as usize] = key;
        if key != 0 {
            self.pages.insert(key, dst);
        }
    }

    /// The sealed page with this key and these tokens.
    pub(crate) fn find(&self, key: u128, tokens: &[u32]) -> Option<u32> {
        self.pages.get(&key).copied().filter(|&page| self.tokens(page) == tokens)
    }

    /// Seals a page, unless another has its key.
    #[must_use]
    pub(crate) fn seal(&mut self, page: u32, key: u128) -> bool {
        if self.pages.contains_key(&key) {
            return false;
        }
        self.pages.insert(key, page);
        self.keys[page as usize] = key;
        true
    }

    /// Takes a page out of the index; gives its key.
    pub(crate) fn unseal(&mut self, page: u32) -> u128 {
        let key = std::mem::take(&mut self.keys[page as usize]);
        self.pages.remove(&key);
        key
    }

    /// The key of a sealed page.
    pub(crate) fn key(&self, page: u32) -> Option<u128> {
        Some(self.keys[page as usize]).filter(|&key| key != 0)
    }

    /// The sealed pages.
    pub(crate) fn pages(&self) -> &HashMap<u128, u32> {
        &self.pages
    }
}

/// Equal keys, pages and tokens of sealed pages. The tokens of other pages are no part of the index.
impl PartialEq for Prefix {
    fn eq(&self, other: &Self) -> bool {
        self.keys == other.keys
            && self.pages == other.pages
            && self.pages.values().all(|&page| self.tokens(page) == other.tokens(page))
    }
}
