//! `InfLlm`: its sequences, and the manager that has their rows.

use std::collections::HashMap;
use std::sync::Arc;

use slotmap::SlotMap;

use super::config::InfLlmConfig;
use super::partition::Partition;
use super::plan::StepData;
use super::sequence::{Sequence, Setup};
use crate::error::Error;
use crate::manager::Manager;
use crate::memory::blocks::Blocks;
use crate::memory::store::BlockStore;
use crate::sequences::SeqId;
use crate::spec::CacheSpec;

/// Attention over the first tokens of a sequence, its last ones, and a few blocks in between, which queries select
/// (InfLLM, Quest; without blocks StreamingLLM). What a sequence has in the cache does not grow with it: the rows of
/// blocks are in a store, and selected ones are loaded.
///
/// It owns all slots of a cache of mode `paged`. Sequences are named by the ids of a [`Manager`], as in a
/// [`StateCache`](crate::StateCache), or by its own.
///
/// A step: [`begin_step`](Self::begin_step) loads blocks and returns the index tensors; the model runs; where attention
/// mass is needed, [`InfLlmStep::observe`](crate::InfLlmStep::observe) takes it;
/// [`InfLlmStep::commit`](crate::InfLlmStep::commit) forms blocks of what has left the last tokens. Then
/// [`select`](Self::select) takes the step's queries, and the next step sees the blocks that fit them: a selection lags
/// one step behind. It holds until the next one.
///
/// Refused without being named below: an id that no sequence has ([`Error::UnknownSeq`]); the use of a sequence whose
/// rows are lost ([`Error::Lost`]); every change while a step is open ([`Error::StepOpen`]).
///
/// State belongs to the sequence: a [`fork`](Self::fork) shares it, a rollback restores it, and
/// [`save_seq`](Self::save_seq) puts it into a file.
#[derive(Debug)]
pub struct InfLlm {
    pub(crate) setup: Setup,
    /// Has the rows of every sequence that are in the cache, as two sequences.
    pub(crate) manager: Manager,
    pub(crate) blocks: Blocks,
    own: SlotMap<SeqId, ()>,
    pub(crate) sequences: HashMap<SeqId, Sequence>,
    /// The sequences of the last committed step and their tokens, in order of its entries.
    pub(crate) last: Vec<(SeqId, usize)>,
    /// By layer: whether it has selected since then.
    pub(crate) selected: Vec<bool>,
    pub(crate) open: Option<StepData>,
}

impl InfLlm {
    /// For a cache, whose blocks are kept in a store.
    ///
    /// # Errors
    /// [`Error::SpecRange`], [`Error::NotShiftable`], [`Error::OutOfMemory`], [`Error::Random`], [`Error::NotPaged`],
    /// [`Error::Multiple`], [`Error::Fraction`], [`Error::RotatedKeys`], [`Error::StaticScales`].
    pub fn new(spec: CacheSpec, config: InfLlmConfig, store: Arc<dyn BlockStore>) -> Result<Self, Error> {
        config.check(&spec)?;
        Ok(Self {
            blocks: Blocks::new(&spec, config.block, store)?,
            selected: vec![false; spec.geometry.num_layer],
            manager: Manager::new(spec.clone())?,
            setup: Setup { spec, config },
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

    /// The configuration.
    pub fn config(&self) -> &InfLlmConfig {
        &self.setup.config
    }

    /// Adds a sequence without tokens, under this id, or under one that no sequence here has.
    ///
    /// # Errors
    /// [`Error::KnownSeq`].
    pub fn create(&mut self, seq: Option<SeqId>) -> Result<SeqId, Error> {
        self.check_new(seq)?;
        let sequence = Sequence::new(&self.setup, [self.manager.create(), self.manager.create()]);
        Ok(self.insert(seq, sequence))
    }

    /// Adds a sequence, as [`create`](Self::create), with all that another one has. They share blocks, and pages until
    /// one of the two writes into them. No bytes move.
    ///
    /// # Errors
    /// [`Error::KnownSeq`].
    pub fn fork(&mut self, src: SeqId, seq: Option<SeqId>) -> Result<SeqId, Error> {
        let sequence = self.intact(src)?.clone();
        self.check_new(seq)?;
        let (rows, resident) = (self.manager.fork(sequence.rows)?, self.manager.fork(sequence.resident)?);
        Ok(self.insert(seq, Sequence { rows, resident, ..sequence }))
    }

    /// Whether a sequence of this id can be added.
    pub(crate) fn check_new(&self, seq: Option<SeqId>) -> Result<(), Error> {
        self.check_closed()?;
        match seq.filter(|seq| self.sequences.contains_key(seq)) {
            Some(seq) => Err(Error::KnownSeq { seq }),
            None => Ok(()),
        }
    }

    /// Adds a sequence under an id that can be added.
    pub(crate) fn insert(&mut self, seq: Option<SeqId>, sequence: Sequence) -> SeqId {
        let mut seq = seq.unwrap_or_else(|| self.own.insert(()));
        // An own id may equal a manager's id that is here; an id that can be added does not.
        while self.sequences.contains_key(&seq) {
            seq = self.own.insert(());
        }
        self.sequences.insert(seq, sequence);
        seq
    }

    /// Removes a sequence, and from the store the blocks that no other one has.
    ///
    /// # Errors
    /// [`Error::Store`], if blocks have stayed in the store: the sequence is removed nevertheless.
    pub fn free(&mut self, seq: SeqId) -> Result<(), Error> {
        self.check_closed()?;
        let Sequence { rows, resident, blocks, .. } = self.sequences.remove(&seq).ok_or(Error::UnknownSeq { seq })?;
        self.own.remove(seq);
        [rows, resident].into_iter().try_for_each(|seq| self.manager.free(seq))?;
        let mut result = Ok(());
        for key in blocks.into_iter().filter_map(Arc::into_inner).flat_map(|block| block.keys) {
            if let Err(error) = self.blocks.store.delete(&key) {
                result = Err(Error::Store(error));
            }
        }
        result
    }

    /// The blocks that the next step of a sequence sees in a layer, in ascending order: all, as long as they are no
    /// more than `topk`, and then the latest selection.
    ///
    /// # Errors
    /// [`Error::Layer`], [`Error::NotSelected`].
    pub fn blocks(&self, seq: SeqId, layer: usize) -> Result<Vec<u32>, Error> {
        self.setup.check_layer(layer)?;
        self.intact(seq)?.wanted(&self.setup, seq, self.setup.group(layer))
    }

    /// The parts of a sequence.
    pub fn partition(&self, seq: SeqId) -> Result<Partition, Error> {
        Ok(self.setup.partition(self.seq_len(seq)?))
    }

    /// The tokens of a sequence.
    pub fn seq_len(&self, seq: SeqId) -> Result<usize, Error> {
        Ok(self.sequence(seq)?.n)
    }

    /// The pages of the cache that a sequence has, shared ones included.
    pub fn num_pages(&self, seq: SeqId) -> Result<usize, Error> {
        let Sequence { rows, resident, .. } = *self.sequence(seq)?;
        Ok([rows, resident].map(|seq| self.manager.state.sequences[seq].table().len()).iter().sum())
    }

    /// Verifies the invariants of the manager that has the rows.
    ///
    /// # Errors
    /// [`Error::Broken`].
    pub fn check(&self) -> Result<(), Error> {
        self.manager.check()
    }

    pub(crate) fn check_closed(&self) -> Result<(), Error> {
        if self.open.is_some() { Err(Error::StepOpen) } else { Ok(()) }
    }

    fn sequence(&self, seq: SeqId) -> Result<&Sequence, Error> {
        self.sequences.get(&seq).ok_or(Error::UnknownSeq { seq })
    }

    /// A sequence whose rows no memory has damaged.
    pub(crate) fn intact(&self, seq: SeqId) -> Result<&Sequence, Error> {
        let sequence = self.sequence(seq)?;
        if self.manager.state.sequences[sequence.rows].lost { Err(Error::Lost { seq }) } else { Ok(sequence) }
    }
}
