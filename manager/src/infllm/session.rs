//! Sequences in files: their rows, their blocks and what queries are compared with.
//!
//! ```text
//! metadata    the cache's; `infllm_config`: what blocks are made by; `infllm`: where the sequence is
//! tensors     index     f32 (blocks, layers, numbers): what queries are compared with
//!             mass      f32 (layers, tokens after the blocks, heads of queries), for representatives
//!             scores    f32, by layer the scores of its first blocks
//!             blocks    u8 (blocks, tokens, bytes of a row)
//!             rows      u8 (rows, bytes of a row): the first tokens and those after the blocks
//! ```

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use bytes::Bytes;
use safetensors::Dtype;
use serde::{Deserialize, Serialize};

use super::config::{BlockScore, FarPositions, InfLlmConfig};
use super::sequence::{Formed, Sequence, Setup};
use super::sequences::InfLlm;
use crate::error::Error;
use crate::memory::CacheMemory;
use crate::sequences::SeqId;
use crate::sequences::positions::MAX_POSITION;
use crate::session::cache;
use crate::session::error::SessionError;
use crate::session::file::{self, Reader, Tensor, Writer, io, malformed};
use crate::step::append::Append;

/// The metadata's entries.
const CONFIG: &str = "infllm_config";
const SEQUENCE: &str = "infllm";

/// Where a sequence is, as the metadata has it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    n: usize,
    /// The distance by which the tokens after the blocks are moved back.
    shift: usize,
    shifts: Vec<usize>,
    /// By layer: how many blocks have a score.
    scores: Vec<usize>,
    chosen: Vec<Option<Vec<u32>>>,
}

/// The configuration by which blocks are made: it has to be the same where a sequence is loaded.
fn config_text(config: &InfLlmConfig) -> String {
    let &InfLlmConfig { init, local, block, repr_topk, per_layer, num_repeat, .. } = config;
    let score = match config.score {
        BlockScore::Representatives => "representatives",
        BlockScore::PageBounds => "page_bounds",
        BlockScore::None => "none",
    };
    let positions = match config.positions {
        FarPositions::TrueDistance => "true_distance".to_owned(),
        FarPositions::FarConstant => "far_constant".to_owned(),
        FarPositions::FarFixed { n_ctx } => format!("far_fixed {n_ctx}"),
    };
    let sizes = format!("init {init}, local {local}, block {block}, repr_topk {repr_topk}, num_repeat {num_repeat}");
    format!("{sizes}, {score}, {positions}, per_layer {per_layer}")
}

impl Saved {
    /// Whether this can be a sequence of the set-up.
    fn fits(&self, setup: &Setup) -> bool {
        let Self { n, shift, shifts, scores, chosen } = self;
        if *n as u64 > MAX_POSITION as u64 + 1 {
            return false;
        }
        let blocks = setup.kept_blocks(*n);
        // Only rows after the second block can have been moved, and not in front of the place of blocks.
        let fixed = matches!(setup.config.positions, FarPositions::FarFixed { .. });
        let most = if fixed { setup.partition(*n).blocks.saturating_sub(1) * setup.config.block } else { 0 };
        let is_selection = |chosen: &Vec<u32>| {
            chosen.len() <= setup.config.topk
                && chosen.is_sorted_by(|a, b| a < b)
                && chosen.last().is_none_or(|&last| (last as usize) < blocks)
        };
        *shift <= most
            && shifts.is_sorted()
            && shifts.last().is_none_or(|last| last <= n)
            && scores.len() == setup.spec.geometry.num_layer
            && scores.iter().all(|&len| len <= blocks)
            && chosen.len() == setup.groups()
            && chosen.iter().flatten().all(is_selection)
    }
}

impl Setup {
    /// The blocks that are kept of a sequence.
    fn kept_blocks(&self, n: usize) -> usize {
        if self.config.has_blocks() { self.partition(n).blocks } else { 0 }
    }

    /// The rows that a sequence has in the cache, without blocks.
    fn rows(&self, n: usize) -> usize {
        n - self.partition(n).blocks * self.config.block
    }

    /// The tokens of a sequence that have attention mass.
    fn observed(&self, n: usize) -> usize {
        let needed = self.config.score == BlockScore::Representatives;
        if needed { n.saturating_sub(self.rest_start(n)) } else { 0 }
    }

    /// Where a file's sequence is; checks that the file is one of this set-up.
    fn read_saved<R>(&self, reader: &Reader<R>) -> Result<Saved, SessionError> {
        cache::check(&self.spec, reader)?;
        if reader.get(CONFIG) != Some(&config_text(&self.config)) {
            return Err(reader.unexpected(CONFIG, "the same configuration"));
        }
        let saved = reader.get(SEQUENCE).and_then(|text| serde_json::from_str::<Saved>(text).ok());
        let saved = saved.filter(|saved| saved.fits(self));
        let saved = saved.ok_or_else(|| reader.unexpected(SEQUENCE, "a sequence of this configuration"))?;
        reader.check_tensors(&self.tensors(&saved))?;
        Ok(saved)
    }

    /// The tensors of a sequence.
    fn tensors(&self, saved: &Saved) -> [Tensor; 5] {
        let (layers, blocks) = (self.spec.geometry.num_layer, self.kept_blocks(saved.n));
        let (tokens, rows) = (self.observed(saved.n), self.rows(saved.n));
        let row_len = self.spec.bytes_per_token();
        [
            Tensor::new("index", Dtype::F32, [blocks, layers, self.index_len()]),
            Tensor::new("mass", Dtype::F32, [layers, tokens, self.query_heads()]),
            Tensor::new("scores", Dtype::F32, [saved.scores.iter().sum()]),
            Tensor::new("blocks", Dtype::U8, [blocks, self.config.block, row_len]),
            Tensor::new("rows", Dtype::U8, [rows, row_len]),
        ]
    }
}

impl InfLlm {
    /// Saves a sequence with all of its blocks, which are read from the store one by one. The file is a safetensors
    /// file that only its owner can read; what was there before is replaced once the new one is whole on disk.
    ///
    /// # Errors
    /// [`Error::Memory`], [`Error::BlockLost`], [`Error::Store`]; [`Error::Session`] with [`SessionError::Io`].
    pub fn save_seq(
        &self,
        path: impl AsRef<Path>,
        memory: &(impl CacheMemory + ?Sized),
        seq: SeqId,
    ) -> Result<(), Error> {
        self.check_closed()?;
        let sequence = self.intact(seq)?;
        let saved = Saved {
            n: sequence.n,
            shift: sequence.n - self.manager.state.sequences[sequence.rows].positions.next() as usize,
            shifts: sequence.shifts.clone(),
            scores: sequence.layers.iter().map(|layer| layer.scores.len()).collect(),
            chosen: sequence.chosen.clone(),
        };
        let mut metadata = cache::metadata(&self.setup.spec);
        let text = serde_json::to_string(&saved).map_err(malformed)?;
        metadata.extend([(CONFIG, config_text(&self.setup.config)), (SEQUENCE, text)]);
        file::write(path.as_ref(), metadata, &self.setup.tensors(&saved), |file| {
            self.write_seq(file, memory, seq, sequence)
        })
    }

    fn write_seq(
        &self,
        writer: &mut Writer<impl Write>,
        memory: &(impl CacheMemory + ?Sized),
        seq: SeqId,
        sequence: &Sequence,
    ) -> Result<(), Error> {
        let index_len = self.setup.index_len();
        let mut layers: Vec<_> = sequence.layers.iter().map(|layer| layer.index.blocks(index_len)).collect();
        for _ in &sequence.blocks {
            for numbers in layers.iter_mut().filter_map(Iterator::next) {
                writer.numbers(numbers, f32::to_le_bytes)?;
            }
        }
        let mass = sequence.layers.iter().map(|layer| &layer.mass);
        let scores = sequence.layers.iter().map(|layer| &layer.scores);
        for numbers in mass.chain(scores) {
            writer.numbers(numbers, f32::to_le_bytes)?;
        }
        for (i, block) in (0..).zip(&sequence.blocks) {
            for key in &block.keys {
                writer.bytes(self.setup.get(&*self.blocks.store, seq, i, key)?.rows())?;
            }
        }
        let (page_size, row_len) = (self.setup.page_size(), self.setup.spec.bytes_per_token());
        let mut bytes = vec![0; page_size * row_len];
        for slots in self.slots(sequence.rows, 0..self.setup.rows(sequence.n)).chunks(page_size) {
            let bytes = &mut bytes[..slots.len() * row_len];
            memory.read_rows(slots, bytes).map_err(Error::memory)?;
            writer.bytes(bytes)?;
        }
        Ok(())
    }

    /// Adds the sequence of a file, as [`create`](Self::create): its blocks go into the store, its rows into the cache.
    /// Types, dimensions, key form, RoPE and fingerprint of the cache are those that it was saved with, and so are
    /// `init`, `local`, `block`, `repr_topk`, `score`, `positions`, `per_layer` and `num_repeat`. The selection of
    /// another `topk` is forgotten.
    ///
    /// # Errors
    /// [`Error::KnownSeq`], [`Error::Session`], [`Error::OutOfPages`], [`Error::TooManyPages`], [`Error::Memory`],
    /// [`Error::Store`]. No sequence has changed then.
    pub fn load_seq(
        &mut self,
        path: impl AsRef<Path>,
        memory: &mut (impl CacheMemory + ?Sized),
        seq: Option<SeqId>,
    ) -> Result<SeqId, Error> {
        self.check_new(seq)?;
        let file = File::open(path.as_ref()).map_err(io("open the file"))?;
        let mut reader = Reader::open(file)?;
        let saved = self.setup.read_saved(&reader);
        let saved = saved.map_err(|error| reader.refusal(error))?;
        let need = self.setup.rows(saved.n).div_ceil(self.setup.page_size());
        let free = self.manager.state.pages.num_free();
        if need > free {
            return Err(Error::OutOfPages { need, free });
        }
        let mut sequence = Sequence::new(&self.setup, [self.manager.create(), self.manager.create()]);
        let mut blocks = Vec::new();
        let read = self.read_seq(&mut reader, memory, &saved, &mut sequence, &mut blocks);
        if let Err(error) = read.and_then(|()| Ok(reader.finish()?)) {
            blocks.into_iter().for_each(|(block, _)| self.forget(block));
            self.manager.free(sequence.rows)?;
            self.manager.free(sequence.resident)?;
            return Err(error);
        }
        blocks.into_iter().for_each(|block| sequence.push(&self.setup, block));
        Ok(self.insert(seq, sequence))
    }

    fn read_seq(
        &mut self,
        reader: &mut Reader<impl Read>,
        memory: &mut (impl CacheMemory + ?Sized),
        saved: &Saved,
        sequence: &mut Sequence,
        blocks: &mut Vec<(Formed, Vec<f32>)>,
    ) -> Result<(), Error> {
        let (layers, block) = (self.setup.spec.geometry.num_layer, self.setup.config.block);
        let row_len = self.setup.spec.bytes_per_token();
        let mut floats = |len: usize| reader.numbers(len, f32::from_le_bytes);
        let indexes = (0..self.setup.kept_blocks(saved.n)).map(|_| floats(layers * self.setup.index_len()));
        let indexes = indexes.collect::<Result<Vec<_>, _>>()?;
        for layer in &mut sequence.layers {
            layer.mass = floats(self.setup.observed(saved.n) * self.setup.query_heads())?;
        }
        for (layer, &len) in sequence.layers.iter_mut().zip(&saved.scores) {
            layer.scores = floats(len)?;
        }
        for index in indexes {
            let mut formed = Formed { keys: Vec::new() };
            let bytes = reader.bytes(block * row_len)?;
            let stored = bytes.chunks_exact(block * self.setup.group_row_len()).try_for_each(|rows| {
                formed.keys.push(self.put(Bytes::copy_from_slice(rows))?);
                Ok::<_, Error>(())
            });
            blocks.push((formed, index));
            stored?;
        }
        let rows = self.setup.rows(saved.n);
        let init = rows.min(self.setup.config.init);
        let behind = self.setup.rest_start(saved.n).saturating_sub(saved.shift);
        for (n, position) in [(init, 0), (rows - init, behind)].into_iter().filter(|part| part.0 > 0) {
            let append = Append::count(sequence.rows, n).at(position as i64);
            self.manager.begin_step(&[append])?.apply(memory)?.detach();
            self.manager.commit_load();
        }
        for slots in self.slots(sequence.rows, 0..rows).chunks(self.setup.page_size()) {
            let rows = reader.bytes(slots.len() * row_len)?;
            memory.write_rows(slots, rows).map_err(Error::memory)?;
        }
        sequence.n = saved.n;
        let selection =
            |chosen: &Option<Vec<u32>>| chosen.clone().filter(|blocks| blocks.len() == self.setup.config.topk);
        sequence.chosen = saved.chosen.iter().map(selection).collect();
        sequence.shifts.clone_from(&saved.shifts);
        Ok(())
    }
}
