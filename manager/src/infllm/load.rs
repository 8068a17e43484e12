//! Blocks on their way from the store into the cache.

use std::collections::HashMap;

use kvcache_kernels::Rotation;

use super::error::{InfLlmError, Lost};
use super::plan::{Entry, slots};
use super::residency::Load;
use super::sequence::{Device, Sequence, Setup};
use super::sequences::InfLlm;
use crate::block::Block;
use crate::error::Error;
use crate::memory::CacheMemory;
use crate::seq_id::SeqId;
use crate::store::{BlockKey, BlockStore, StoreError};

/// Blocks that were fetched and verified.
#[derive(Debug)]
pub(crate) struct Loads(Vec<(SeqId, usize, Load, Block)>);

impl Loads {
    /// Fetches the blocks of the entries of a step, by entry and selection.
    ///
    /// # Errors
    /// [`InfLlmError::BlockLost`], [`InfLlmError::Store`].
    pub(crate) fn fetch(
        setup: &Setup,
        store: &dyn BlockStore,
        entries: &[Entry],
        sequences: &HashMap<SeqId, Sequence>,
        planned: &[(Device, Vec<Vec<Load>>, bool)],
    ) -> Result<Self, InfLlmError> {
        let mut fetched = Vec::new();
        for (&Entry { seq, .. }, (_, loads, _)) in entries.iter().zip(planned) {
            for (group, loads) in loads.iter().enumerate() {
                for &load in loads {
                    let key = &sequences[&seq].blocks[load.block as usize].keys[group];
                    fetched.push((seq, group, load, setup.get(store, seq, load.block, key)?));
                }
            }
        }
        Ok(Self(fetched))
    }

    /// How many they are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

impl Setup {
    /// A block of a sequence from the store.
    ///
    /// # Errors
    /// [`InfLlmError::BlockLost`], [`InfLlmError::Store`].
    pub(crate) fn get(
        &self,
        store: &dyn BlockStore,
        seq: SeqId,
        block: u32,
        key: &BlockKey,
    ) -> Result<Block, InfLlmError> {
        let lost = |why| InfLlmError::BlockLost { seq, block, why };
        let got = match store.get(key) {
            Err(StoreError::Bad(error)) => return Err(lost(error.into())),
            got => got?.ok_or(lost(Lost::Missing))?,
        };
        got.check(key, self.config.block, self.group_row_len()).map_err(|error| lost(error.into()))?;
        Ok(got)
    }
}

impl InfLlm {
    /// Rotates keys, and writes blocks into their slots. After an error the sequences whose keys were to be rotated are
    /// lost if that failed, and else the blocks are not resident.
    pub(crate) fn write(
        &mut self,
        memory: &mut (impl CacheMemory + ?Sized),
        rotations: &[Rotation],
        rotated: &[SeqId],
        loads: &Loads,
    ) -> Result<(), Error> {
        let result = match self.setup.spec.rope() {
            Some(rope) if !rotations.is_empty() => memory.rotate_keys(rotations, rope).map_err(Error::memory),
            _ => Ok(()),
        };
        if result.is_err() {
            for seq in rotated {
                self.sequences.entry(*seq).and_modify(|sequence| sequence.lost = true);
            }
        }
        let result = result.and_then(|()| self.write_blocks(memory, loads));
        if result.is_err() {
            for (seq, group, load, _) in &loads.0 {
                let forget = |sequence: &mut Sequence| sequence.device.residency[*group].forget(&[*load]);
                self.sequences.entry(*seq).and_modify(forget);
            }
        }
        result
    }

    fn write_blocks(&self, memory: &mut (impl CacheMemory + ?Sized), loads: &Loads) -> Result<(), Error> {
        let setup = &self.setup;
        for (seq, group, load, block) in &loads.0 {
            let slots: Vec<usize> = slots(&self.sequences[seq].device.slots[load.slot], setup.page_size()).collect();
            let written = if setup.config.per_layer {
                memory.write_layer_rows(*group, &slots, block.rows())
            } else {
                memory.write_rows(&slots, block.rows())
            };
            written.map_err(Error::memory)?;
        }
        Ok(())
    }
}
