//! The object: its sequences.

use std::collections::HashMap;
use std::sync::Arc;

use slotmap::SlotMap;

use super::config::InfLlmConfig;
use super::error::InfLlmError;
use super::partition::Partition;
use super::sequence::{Sequence, Setup};
use super::step::{InfLlmStep, Open};
use crate::error::Error;
use crate::pages::Pages;
use crate::seq_id::SeqId;
use crate::spec::CacheSpec;
use crate::store::{BlockStore, StoreError};

/// Attention over the first tokens of a sequence, its last ones, and a few blocks in between, which queries select
/// (InfLLM, Quest; without blocks StreamingLLM). What a sequence has in the cache does not grow with it: the rows of
/// blocks are in a store, and selected ones are loaded.
///
/// It owns all slots of a cache of mode `paged`. Sequences are named by the ids of a [`Manager`](crate::Manager), as
/// those of a [`StateCache`](crate::StateCache), or by its own.
///
/// A step: [`begin_step`](Self::begin_step) loads blocks and gives the index tensors; the model runs; where attention
/// mass is needed, [`InfLlmStep::observe`] takes it; [`InfLlmStep::commit`] forms blocks of what has left the last
/// tokens. Then [`select`](Self::select) takes the step's queries, and the next step sees the blocks that fit them: a
/// selection lags one step behind. It holds until the next one.
///
/// State belongs to the sequence: a [`fork`](Self::fork) shares it, a rollback restores it, and
/// [`save_seq`](Self::save_seq) puts it into a file.
#[derive(Debug)]
pub struct InfLlm {
    pub(crate) setup: Setup,
    pub(crate) store: Arc<dyn BlockStore>,
    /// What makes the keys of blocks those of nobody else, and how many there are.
    pub(crate) secret: [u8; 32],
    pub(crate) keys: u64,
    own: SlotMap<SeqId, ()>,
    pub(crate) sequences: HashMap<SeqId, Sequence>,
    pub(crate) pages: Pages,
    /// The sequences of the last committed step and their tokens, in order of its entries.
    pub(crate) last: Vec<(SeqId, usize)>,
    /// By layer: whether it has selected since then.
    pub(crate) selected: Vec<bool>,
    pub(crate) open: Option<Open>,
}

impl InfLlm {
    /// For a cache, whose blocks are kept in a store.
    ///
    /// # Errors [`Error::SpecRange`], [`Error::NotShiftable`], [`Error::OutOfMemory`]; [`InfLlmError::NotPaged`],
    /// [`InfLlmError::Multiple`], [`InfLlmError::Fraction`], [`InfLlmError::RotatedKeys`],
    /// [`InfLlmError::StaticScales`], and [`InfLlmError::Store`] where the system has no random numbers.
    pub fn new(spec: CacheSpec, config: InfLlmConfig, store: Arc<dyn BlockStore>) -> Result<Self, Error> {
        config.check(&spec)?;
        let mut secret = [0; 32];
        getrandom::fill(&mut secret)
            .map_err(|error| InfLlmError::Store(StoreError::Failed(error.to_string().into())))?;
        Ok(Self {
            pages: Pages::stack(spec.num_pages())?,
            selected: vec![false; spec.geometry().num_layer],
            setup: Setup { spec, config },
            store,
            secret,
            keys: 0,
            own: SlotMap::with_key(),
            sequences: HashMap::new(),
            last: Vec::new(),
            open: None,
        })
    }

    /// The cache.
    pub fn spec(&self) -> &CacheSpec {
        &self.setup.spec
    }

    /// What it was asked to do.
    pub fn config(&self) -> &InfLlmConfig {
        &self.setup.config
    }

    /// Adds a sequence without tokens: that of this id, or one with an id that no sequence here has.
    ///
    /// # Errors
    /// [`Error::StepOpen`], [`Error::KnownSeq`].
    pub fn create(&mut self, seq: Option<SeqId>) -> Result<SeqId, Error> {
        let sequence = Sequence::new(&self.setup);
        self.insert(seq, sequence)
    }

    /// Adds a sequence, as [`create`](Self::create), with all that another one has. They share blocks, and pages until
    /// one of the two writes into them. No bytes move.
    ///
    /// # Errors
    /// [`Error::UnknownSeq`], [`Error::Lost`], and those of [`create`](Self::create).
    pub fn fork(&mut self, src: SeqId, seq: Option<SeqId>) -> Result<SeqId, Error> {
        let sequence = self.intact(src)?.clone();
        let pages: Vec<u32> = sequence.device.all_pages().collect();
        let seq = self.insert(seq, sequence)?;
        for page in pages {
            self.pages.share(page);
        }
        Ok(seq)
    }

    pub(crate) fn insert(&mut self, seq: Option<SeqId>, sequence: Sequence) -> Result<SeqId, Error> {
        self.check_closed()?;
        if let Some(seq) = seq.filter(|seq| self.sequences.contains_key(seq)) {
            return Err(Error::KnownSeq { seq });
        }
        // An own id may be that of a manager's sequence that is here.
        let seq = seq.unwrap_or_else(|| {
            loop {
                let own = self.own.insert(());
                if !self.sequences.contains_key(&own) {
                    break own;
                }
            }
        });
        self.sequences.insert(seq, sequence);
        Ok(seq)
    }

    /// Removes a sequence, and from the store the blocks that no other one has.
    ///
    /// # Errors
    /// [`Error::StepOpen`], [`Error::UnknownSeq`]; [`InfLlmError::Store`], if blocks have stayed in the store: the
    /// sequence is removed nevertheless.
    pub fn free(&mut self, seq: SeqId) -> Result<(), Error> {
        self.check_closed()?;
        let Sequence { device, blocks, .. } = self.sequences.remove(&seq).ok_or(Error::UnknownSeq { seq })?;
        self.own.remove(seq);
        device.all_pages().for_each(|page| self.release(page));
        let mut result = Ok(());
        for key in blocks.into_iter().filter_map(Arc::into_inner).flat_map(|block| block.keys) {
            if let Err(error) = self.store.delete(&key) {
                result = Err(InfLlmError::Store(error).into());
            }
        }
        result
    }

    /// The blocks that the next step of a sequence sees in a layer, in ascending order: all, as long as they are no
    /// more than `topk`, and then the latest selection.
    ///
    /// # Errors
    /// [`Error::UnknownSeq`], [`Error::Lost`], [`InfLlmError::Layer`], [`InfLlmError::NotSelected`].
    pub fn blocks(&self, seq: SeqId, layer: usize) -> Result<Vec<u32>, Error> {
        self.setup.check_layer(layer)?;
        self.intact(seq)?.wanted(&self.setup, seq, self.setup.group(layer))
    }

    /// The parts of a sequence.
    ///
    /// # Errors
    /// [`Error::UnknownSeq`].
    pub fn partition(&self, seq: SeqId) -> Result<Partition, Error> {
        let sequence = self.sequences.get(&seq).ok_or(Error::UnknownSeq { seq })?;
        Ok(self.setup.partition(sequence.n))
    }

    /// The tokens of a sequence.
    ///
    /// # Errors
    /// [`Error::UnknownSeq`].
    pub fn seq_len(&self, seq: SeqId) -> Result<usize, Error> {
        self.sequences.get(&seq).map(|sequence| sequence.n).ok_or(Error::UnknownSeq { seq })
    }

    /// The pages of the cache that a sequence has: those that it shares, too.
    ///
    /// # Errors
    /// [`Error::UnknownSeq`].
    pub fn num_pages(&self, seq: SeqId) -> Result<usize, Error> {
        self.sequences.get(&seq).map(|sequence| sequence.device.all_pages().count()).ok_or(Error::UnknownSeq { seq })
    }

    /// The step that was [detached](InfLlmStep::detach).
    pub fn open_step(&mut self) -> Option<InfLlmStep<'_>> {
        if self.open.is_some() { Some(InfLlmStep(self)) } else { None }
    }

    /// Verifies that every page is free or in as many tables as it is counted.
    ///
    /// # Errors
    /// [`Error::Broken`].
    pub fn check(&self) -> Result<(), Error> {
        let mut entries = vec![0; self.pages.len()];
        let tails = self.open.iter().flat_map(Open::new_pages);
        for page in self.sequences.values().flat_map(|sequence| sequence.device.all_pages()).chain(tails) {
            entries[page as usize] += 1;
        }
        for (page, &expected) in (0..).zip(&entries) {
            if self.pages.refcount(page) != expected {
                return Err(Error::Broken { what: "a page's reference count is its table entries", at: page as usize });
            }
        }
        let free = entries.iter().filter(|&&entries| entries == 0).count();
        if self.pages.num_free() != free {
            return Err(Error::Broken { what: "pages in no table are free", at: free });
        }
        Ok(())
    }

    pub(crate) fn check_closed(&self) -> Result<(), Error> {
        if self.open.is_some() { Err(Error::StepOpen) } else { Ok(()) }
    }

    pub(crate) fn intact(&self, seq: SeqId) -> Result<&Sequence, Error> {
        match self.sequences.get(&seq) {
            None => Err(Error::UnknownSeq { seq }),
            Some(sequence) if sequence.lost => Err(Error::Lost { seq }),
            Some(sequence) => Ok(sequence),
        }
    }

    /// A table entry less.
    pub(crate) fn release(&mut self, page: u32) {
        if self.pages.unshare(page) == 0 {
            self.pages.free(page);
        }
    }
}

impl Setup {
    pub(crate) fn check_layer(&self, layer: usize) -> Result<(), InfLlmError> {
        let num_layer = self.spec.geometry().num_layer;
        if layer < num_layer { Ok(()) } else { Err(InfLlmError::Layer { layer, num_layer }) }
    }
}
