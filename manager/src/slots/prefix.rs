//! The prefix index: full pages by all tokens up to their end.

use std::hash::BuildHasher;
use std::ops::Range;

use hashbrown::hash_table::Entry;
use hashbrown::{DefaultHashBuilder, HashTable};

use crate::error::Error;
use crate::memory::block::BlockKey;
use crate::slots::bits::zeros;

/// Sealed pages by key: the name of all tokens up to the end of the page, in this process and in stores.
///
/// ```text
/// key of no tokens = SHA-256(seed of the specification, SHA-256(salt))
/// key of a page    = the state of SHA-256 that continues from its parent's key with the page's tokens
/// ```
///
/// A hit also compares the page's tokens, but all before it, fingerprint and salt through the key alone: anyone who
/// chooses tokens or salts would need a collision of SHA-256.
#[derive(Debug, Clone)]
pub(crate) struct Prefix {
    page_size: usize,
    /// The sealed pages. Their keys are in `keys` alone: a smaller table is sooner in cache.
    pages: HashTable<u32>,
    hasher: DefaultHashBuilder,
    /// By page: its key, or zeros if it is not sealed.
    keys: Vec<[u8; 32]>,
    /// By page: the number of its sealing, which says whether it is still the page that it was.
    seals: Vec<u64>,
    sealed: u64,
    /// By slot: its token, where it is known.
    pub(crate) slot_tokens: Vec<u32>,
}

/// The key of a page that is not sealed.
const UNSEALED: [u8; 32] = [0; 32];

impl Prefix {
    pub(crate) fn new(num_pages: usize, page_size: usize) -> Result<Self, Error> {
        Ok(Self {
            page_size,
            pages: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            keys: zeros(num_pages)?,
            seals: zeros(num_pages)?,
            sealed: 0,
            slot_tokens: zeros(num_pages * page_size)?,
        })
    }

    fn slots(&self, page: u32) -> Range<usize> {
        page as usize * self.page_size..(page as usize + 1) * self.page_size
    }

    pub(crate) fn tokens(&self, page: u32) -> &[u32] {
        &self.slot_tokens[self.slots(page)]
    }

    pub(crate) fn tokens_mut(&mut self, page: u32) -> &mut [u32] {
        let slots = self.slots(page);
        &mut self.slot_tokens[slots]
    }

    /// Puts a sealed page's key and tokens to another page.
    pub(crate) fn move_page(&mut self, src: u32, dst: u32) {
        let slots = self.slots(src);
        self.slot_tokens.copy_within(slots, dst as usize * self.page_size);
        let key = std::mem::replace(&mut self.keys[src as usize], UNSEALED);
        self.keys[dst as usize] = key;
        self.seals[dst as usize] = self.seals[src as usize];
        if let Some(page) = self.pages.find_mut(self.hasher.hash_one(key), |&page| page == src) {
            *page = dst;
        }
    }

    fn get(&self, key: BlockKey) -> Option<u32> {
        let is = |&page: &u32| self.keys[page as usize] == *key.as_bytes();
        self.pages.find(self.hasher.hash_one(key.as_bytes()), is).copied()
    }

    pub(crate) fn find(&self, key: BlockKey, tokens: &[u32]) -> Option<u32> {
        self.get(key).filter(|&page| self.tokens(page) == tokens)
    }

    /// Seals a page, unless another has its key.
    #[must_use]
    pub(crate) fn seal(&mut self, page: u32, key: BlockKey) -> bool {
        let Self { pages, hasher, keys, .. } = self;
        let key = key.as_bytes();
        let rehash = |&page: &u32| hasher.hash_one(keys[page as usize]);
        match pages.entry(hasher.hash_one(key), |&page| keys[page as usize] == *key, rehash) {
            Entry::Occupied(_) => return false,
            Entry::Vacant(entry) => entry.insert(page),
        };
        keys[page as usize] = *key;
        self.sealed += 1;
        self.seals[page as usize] = self.sealed;
        true
    }

    pub(crate) fn seal_of(&self, page: u32) -> u64 {
        self.seals[page as usize]
    }

    /// The sealed page with this key, if it is the one that was sealed by this number.
    pub(crate) fn same(&self, key: BlockKey, seal: u64) -> Option<u32> {
        self.get(key).filter(|&page| self.seal_of(page) == seal)
    }

    /// Takes a page out of the index; returns its key.
    pub(crate) fn unseal(&mut self, page: u32) -> Option<BlockKey> {
        let key = self.key(page)?;
        self.keys[page as usize] = UNSEALED;
        if let Ok(entry) = self.pages.find_entry(self.hasher.hash_one(key.as_bytes()), |&sealed| sealed == page) {
            entry.remove();
        }
        Some(key)
    }

    pub(crate) fn key(&self, page: u32) -> Option<BlockKey> {
        let key = self.keys[page as usize];
        (key != UNSEALED).then(|| BlockKey::from_bytes(key))
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
