//! Sequences in files: their rows, their blocks and what queries are compared with.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use bytes::Bytes;
use safetensors::Dtype;
use serde::{Deserialize, Serialize};

use super::config::{BlockScore, FarPositions, InfLlmConfig};
use super::sequence::{Formed, Sequence, Setup};
use super::sequences::InfLlm;
use crate::append::Append;
use crate::error::Error;
use crate::memory::CacheMemory;
use crate::positions::MAX_POSITION;
use crate::seq_id::SeqId;
use crate::session::cache;
use crate::session::error::SessionError;
use crate::session::file::{self, Reader, Tensor, Writer, io};

/// The metadata's entry.
const KEY: &str = "infllm";

/// What the metadata says of a sequence. What its blocks are made by has to be the same where it is loaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    init: usize,
    local: usize,
    block: usize,
    repr_topk: usize,
    score: String,
    positions: String,
    per_layer: bool,
    num_repeat: usize,
    n: usize,
    shift: usize,
    shifts: Vec<usize>,
    /// By layer: how many blocks have a score.
    scores: Vec<usize>,
    chosen: Vec<Option<Vec<u32>>>,
}

impl Saved {
    /// What has to be the same.
    fn new(config: &InfLlmConfig) -> Self {
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
        let &InfLlmConfig { init, local, block, repr_topk, per_layer, num_repeat, .. } = config;
        Self {
            init,
            local,
            block,
            repr_topk,
            score: score.to_owned(),
            positions,
            per_layer,
            num_repeat,
            n: 0,
            shift: 0,
            shifts: Vec::new(),
            scores: Vec::new(),
            chosen: Vec::new(),
        }
    }

    /// Whether this can be a sequence of the set-up.
    fn fits(&self, setup: &Setup) -> bool {
        let Self { n, shift, shifts, scores, chosen, .. } = self;
        let same = Self { n: 0, shift: 0, shifts: Vec::new(), scores: Vec::new(), chosen: Vec::new(), ..self.clone() };
        if same != Self::new(&setup.config) || *n as u64 > MAX_POSITION as u64 + 1 {
            return false;
        }
        let blocks = setup.blocks(*n);
        // Only rows behind the second block can have been moved, and not in front of the place of blocks.
        let most = setup.partition(*n).blocks.saturating_sub(1) * setup.config.block;
        let fixed = matches!(setup.config.positions, FarPositions::FarFixed { .. });
        let ascending = |blocks: &Vec<u32>| blocks.windows(2).all(|pair| pair[0] < pair[1]);
        let right = |chosen: &Vec<u32>| {
            chosen.len() <= setup.config.topk
                && ascending(chosen)
                && chosen.last().is_none_or(|&b| (b as usize) < blocks)
        };
        *shift <= if fixed { most } else { 0 }
            && shifts.is_sorted()
            && shifts.last().is_none_or(|last| last <= n)
            && scores.len() == setup.spec.geometry().num_layer
            && scores.iter().all(|&len| len <= blocks)
            && chosen.len() == setup.groups()
            && chosen.iter().flatten().all(right)
    }
}

impl Setup {
    /// The blocks that are kept of a sequence.
    fn blocks(&self, n: usize) -> usize {
        if self.config.has_blocks() { self.partition(n).blocks } else { 0 }
    }

    /// The tensors of a sequence.
    fn tensors(&self, saved: &Saved) -> [Tensor; 5] {
        let (layers, blocks) = (self.spec.geometry().num_layer, self.blocks(saved.n));
        let tokens = if self.config.score == BlockScore::Representatives {
            saved.n.saturating_sub(self.rest_start(saved.n))
        } else {
            0
        };
        let rows = saved.n - self.partition(saved.n).blocks * self.config.block;
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
    /// [`Error::StepOpen`], [`Error::UnknownSeq`], [`Error::Lost`], [`Error::Memory`]; [`Error::Session`] with
    /// [`SessionError::Io`]; [`InfLlmError::BlockLost`](crate::InfLlmError::BlockLost),
    /// [`InfLlmError::Store`](crate::InfLlmError::Store).
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
            ..Saved::new(&self.setup.config)
        };
        let mut metadata = cache::metadata(&self.setup.spec);
        let text = serde_json::to_string(&saved).map_err(|error| SessionError::Header { reason: error.to_string() })?;
        metadata.insert(KEY, text);
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
        let page_size = self.setup.page_size();
        let rows = self.manager.state.sequences[sequence.rows].len();
        let slots = self.slots(sequence.rows, 0..rows);
        let mut bytes = vec![0; page_size * self.setup.spec.bytes_per_token()];
        for slots in slots.chunks(page_size) {
            let bytes = &mut bytes[..slots.len() * self.setup.spec.bytes_per_token()];
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
    /// [`Error::StepOpen`], [`Error::KnownSeq`], [`Error::Session`], [`Error::OutOfPages`], [`Error::Memory`],
    /// [`InfLlmError::Store`](crate::InfLlmError::Store). No sequence has changed then.
    pub fn load_seq(
        &mut self,
        path: impl AsRef<Path>,
        memory: &mut (impl CacheMemory + ?Sized),
        seq: Option<SeqId>,
    ) -> Result<SeqId, Error> {
        self.check_new(seq)?;
        let file = File::open(path.as_ref()).map_err(io("open the file"))?;
        let mut reader = Reader::open(file)?;
        cache::check(&self.setup.spec, &reader)?;
        let other = || reader.unexpected(KEY, "a sequence of the same configuration");
        let saved: Saved = reader.get(KEY).and_then(|text| serde_json::from_str(text).ok()).ok_or_else(other)?;
        if !saved.fits(&self.setup) {
            return Err(other().into());
        }
        reader.check_tensors(&self.setup.tensors(&saved))?;
        let rows = saved.n - self.setup.partition(saved.n).blocks * self.setup.config.block;
        let (need, free) = (rows.div_ceil(self.setup.page_size()), self.manager.state.pages.num_free());
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
        let (layers, block) = (self.setup.spec.geometry().num_layer, self.setup.config.block);
        let (rest, page_size) = (saved.n.saturating_sub(self.setup.rest_start(saved.n)), self.setup.page_size());
        let row_len = self.setup.spec.bytes_per_token();
        let mut floats = |len: usize| reader.numbers(len, f32::from_le_bytes);
        let indexes = (0..self.setup.blocks(saved.n)).map(|_| floats(layers * self.setup.index_len()));
        let indexes = indexes.collect::<Result<Vec<_>, _>>()?;
        if self.setup.config.score == BlockScore::Representatives {
            for layer in &mut sequence.layers {
                layer.mass = floats(rest * self.setup.query_heads())?;
            }
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
        let rows = saved.n - self.setup.partition(saved.n).blocks * block;
        let init = rows.min(self.setup.config.init);
        let behind = self.setup.rest_start(saved.n).saturating_sub(saved.shift);
        for (n, position) in [(init, 0), (rows - init, behind)].into_iter().filter(|part| part.0 > 0) {
            let append = Append::count(sequence.rows, n).at(position as i64);
            self.manager.begin_step(&[append])?.apply(memory)?.commit();
        }
        let slots = self.slots(sequence.rows, 0..rows);
        for slots in slots.chunks(page_size) {
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
