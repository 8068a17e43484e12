//! The prefix index: full pages by all tokens up to their end.

use std::hash::BuildHasher;
use std::ops::Range;

use hashbrown::hash_table::Entry;
use hashbrown::{DefaultHashBuilder, HashTable};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use crate::error::Error;
use crate::zeros::zeros;

/// Sealed pages by key. A page's key is a 128-bit hash of its parent's key and its tokens; the first parent's is that
/// of a fingerprint and a salt. A hit compares the page's tokens, too, but all before it through the key alone, and so
/// fingerprint and salt. The hash, xxh3, is not collision-resistant: chance does not make equal keys, but whoever
/// chooses tokens or salts can.
#[derive(Debug, Clone)]
pub(crate) struct Prefix {
    page_size: usize,
    /// The sealed pages. Their keys are in `keys` alone: a smaller table is sooner in cache.
    pages: HashTable<u32>,
    hasher: DefaultHashBuilder,
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
    // Two hashes of contiguous bytes take less than half as long as one of bytes that come in pieces.
    let both = [parent.to_le_bytes(), xxh3_128(bytemuck::cast_slice(tokens)).to_le_bytes()];
    xxh3_128(both.as_flattened()).max(1)
}

impl Prefix {
    pub(crate) fn new(num_pages: usize, page_size: usize) -> Result<Self, Error> {
        Ok(Self {
            page_size,
            pages: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            keys: zeros(num_pages)?,
            tokens: zeros(num_pages * page_size)?,
        })
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
        if let Some(page) = self.pages.find_mut(self.hasher.hash_one(key), |&page| page == src) {
            *page = dst;
        }
    }

    /// The sealed page with this key.
    fn get(&self, key: u128) -> Option<u32> {
        self.pages.find(self.hasher.hash_one(key), |&page| self.keys[page as usize] == key).copied()
    }

    /// The sealed page with this key and these tokens.
    pub(crate) fn find(&self, key: u128, tokens: &[u32]) -> Option<u32> {
        self.get(key).filter(|&page| self.tokens(page) == tokens)
    }

    /// Seals a page, unless another has its key.
    #[must_use]
    pub(crate) fn seal(&mut self, page: u32, key: u128) -> bool {
        let Self { pages, hasher, keys, .. } = self;
        let hash = |page: &u32| hasher.hash_one(keys[*page as usize]);
        match pages.entry(hasher.hash_one(key), |&page| keys[page as usize] == key, hash) {
            Entry::Occupied(_) => return false,
            Entry::Vacant(entry) => entry.insert(page),
        };
        keys[page as usize] = key;
        true
    }

    /// Takes a page out of the index; gives its key.
    pub(crate) fn unseal(&mut self, page: u32) -> u128 {
        let key = std::mem::take(&mut self.keys[page as usize]);
        if let Ok(entry) = self.pages.find_entry(self.hasher.hash_one(key), |&sealed| sealed == page) {
            entry.remove();
        }
        key
    }

    /// The key of a sealed page.
    pub(crate) fn key(&self, page: u32) -> Option<u128> {
        Some(self.keys[page as usize]).filter(|&key| key != 0)
    }

    /// The sealed pages, each with whether the index finds it by its key.
    pub(crate) fn sealed(&self) -> impl ExactSizeIterator<Item = (u32, bool)> {
        self.pages.iter().map(|&page| (page, self.key(page).is_some_and(|key| self.get(key) == Some(page))))
    }
}

/// Equal keys, and tokens of sealed pages. The tokens of other pages are no part of the index.
impl PartialEq for Prefix {
    fn eq(&self, other: &Self) -> bool {
        self.keys == other.keys && self.pages.iter().all(|&page| self.tokens(page) == other.tokens(page))
    }
}
