//! The prefix index: full pages by all tokens up to their end.

use std::hash::BuildHasher;
use std::ops::Range;

use hashbrown::hash_table::Entry;
use hashbrown::{DefaultHashBuilder, HashTable};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use crate::bits::zeros;
use crate::block::BlockKey;
use crate::error::Error;

/// The name of all tokens up to the end of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PrefixKey {
    /// In this process. It is never 0.
    hash: u128,
    /// In stores, where the manager has one.
    pub(crate) digest: Option<BlockKey>,
}

/// Sealed pages by key. A page's hash is one of 128 bits of its parent's hash and its tokens; the first parent's is
/// that of a fingerprint and a salt. A hit compares the page's tokens, too, but all before it through the key alone,
/// and so fingerprint and salt. The hash, xxh3, is not collision-resistant: chance does not make equal keys, but
/// whoever chooses tokens or salts can.
#[derive(Debug, Clone)]
pub(crate) struct Prefix {
    page_size: usize,
    /// The sealed pages. Their keys are in `keys` alone: a smaller table is sooner in cache.
    pages: HashTable<u32>,
    hasher: DefaultHashBuilder,
    /// By page: its hash, or 0 if it is not sealed.
    hashes: Vec<u128>,
    /// By page: its name in stores, or zeros.
    digests: Vec<[u8; 32]>,
    /// By page: the number of its sealing, which says whether it is still the page that it was.
    seals: Vec<u64>,
    sealed: u64,
    /// By slot: its token, where it is known.
    tokens: Vec<u32>,
}

/// The key of no tokens. `seed` is what all blocks of a manager have in common, if it has a store.
pub(crate) fn root(fingerprint: &str, salt: &[u8], seed: Option<&BlockKey>) -> PrefixKey {
    let mut hash = Xxh3::new();
    hash.update(&(fingerprint.len() as u64).to_le_bytes());
    hash.update(fingerprint.as_bytes());
    hash.update(salt);
    // Of one length: no salt is a seed, a salt and the tokens of a page.
    let digest =
        seed.map(|seed| BlockKey::digest([seed.as_bytes(), BlockKey::digest([salt]).as_bytes()].map(|part| &part[..])));
    PrefixKey { hash: hash.digest128().max(1), digest }
}

/// The key of a page of these tokens behind what `parent` is the key of.
pub(crate) fn child(parent: PrefixKey, tokens: &[u32]) -> PrefixKey {
    // Two hashes of contiguous bytes take less than half as long as one of bytes that come in pieces.
    let both = [parent.hash.to_le_bytes(), xxh3_128(bytemuck::cast_slice(tokens)).to_le_bytes()];
    let digest = parent.digest.map(|parent| parent.followed_by(tokens));
    PrefixKey { hash: xxh3_128(both.as_flattened()).max(1), digest }
}

impl Prefix {
    pub(crate) fn new(num_pages: usize, page_size: usize) -> Result<Self, Error> {
        Ok(Self {
            page_size,
            pages: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            hashes: zeros(num_pages)?,
            digests: zeros(num_pages)?,
            seals: zeros(num_pages)?,
            sealed: 0,
            tokens: zeros(num_pages * page_size)?,
        })
    }

    fn slots(&self, page: u32) -> Range<usize> {
        page as usize * self.page_size..(page as usize + 1) * self.page_size
    }

    pub(crate) fn tokens(&self, page: u32) -> &[u32] {
        &self.tokens[self.slots(page)]
    }

    pub(crate) fn tokens_mut(&mut self, page: u32) -> &mut [u32] {
        let slots = self.slots(page);
        &mut self.tokens[slots]
    }

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
        let hash = std::mem::take(&mut self.hashes[src as usize]);
        self.hashes[dst as usize] = hash;
        self.digests[dst as usize] = self.digests[src as usize];
        self.seals[dst as usize] = self.seals[src as usize];
        if let Some(page) = self.pages.find_mut(self.hasher.hash_one(hash), |&page| page == src) {
            *page = dst;
        }
    }

    fn get(&self, key: PrefixKey) -> Option<u32> {
        let is = |&page: &u32| self.hashes[page as usize] == key.hash;
        self.pages.find(self.hasher.hash_one(key.hash), is).copied()
    }

    pub(crate) fn find(&self, key: PrefixKey, tokens: &[u32]) -> Option<u32> {
        self.get(key).filter(|&page| self.tokens(page) == tokens)
    }

    /// Seals a page, unless another has its key.
    #[must_use]
    pub(crate) fn seal(&mut self, page: u32, key: PrefixKey) -> bool {
        let Self { pages, hasher, hashes, .. } = self;
        let rehash = |&page: &u32| hasher.hash_one(hashes[page as usize]);
        match pages.entry(hasher.hash_one(key.hash), |&page| hashes[page as usize] == key.hash, rehash) {
            Entry::Occupied(_) => return false,
            Entry::Vacant(entry) => entry.insert(page),
        };
        hashes[page as usize] = key.hash;
        if let Some(digest) = key.digest {
            self.digests[page as usize] = *digest.as_bytes();
        }
        self.sealed += 1;
        self.seals[page as usize] = self.sealed;
        true
    }

    pub(crate) fn seal_of(&self, page: u32) -> u64 {
        self.seals[page as usize]
    }

    /// The sealed page with this key, if it is the one that was sealed by this number.
    pub(crate) fn same(&self, key: PrefixKey, seal: u64) -> Option<u32> {
        self.get(key).filter(|&page| self.seal_of(page) == seal)
    }

    /// Takes a page out of the index; gives its key.
    pub(crate) fn unseal(&mut self, page: u32) -> Option<PrefixKey> {
        let key = self.key(page)?;
        self.hashes[page as usize] = 0;
        self.digests[page as usize] = [0; 32];
        if let Ok(entry) = self.pages.find_entry(self.hasher.hash_one(key.hash), |&sealed| sealed == page) {
            entry.remove();
        }
        Some(key)
    }

    pub(crate) fn key(&self, page: u32) -> Option<PrefixKey> {
        let (hash, digest) = (self.hashes[page as usize], self.digests[page as usize]);
        let digest = (digest != [0; 32]).then(|| BlockKey::from_bytes(digest));
        (hash != 0).then_some(PrefixKey { hash, digest })
    }

    /// The sealed pages, each with whether the index finds it by its key.
    pub(crate) fn sealed(&self) -> impl ExactSizeIterator<Item = (u32, bool)> {
        self.pages.iter().map(|&page| (page, self.key(page).is_some_and(|key| self.get(key) == Some(page))))
    }
}

/// Equal keys, and tokens of sealed pages. The tokens of other pages are no part of the index.
impl PartialEq for Prefix {
    fn eq(&self, other: &Self) -> bool {
        self.hashes == other.hashes && self.pages.iter().all(|&page| self.tokens(page) == other.tokens(page))
    }
}
