//! The index tensors of a step, in buffers that every step uses again.

use kvcache_op::IndexInputs;
use ndarray::Array2;

use crate::append::Append;
use crate::error::Error;
use crate::plan::Entry;
use crate::seq_id::SeqId;
use crate::spec::CacheSpec;
use crate::state::State;

#[derive(Debug, Clone, Default)]
pub(crate) struct Tensors {
    pub(crate) seqstarts: Vec<i64>,
    pub(crate) kvstarts: Vec<i64>,
    pub(crate) start_pos: Vec<i64>,
    pub(crate) cachestarts: Array2<i64>,
    pub(crate) max_seqlen: i64,
    pub(crate) max_kvlen: i64,
    pub(crate) positions: Vec<i64>,
    pub(crate) token_ids: Vec<i64>,
    pub(crate) cached: Vec<i64>,
    pub(crate) order: Vec<i64>,
    pub(crate) decoding_batches: i64,
    /// By row of `cachestarts`: what it has.
    rows: Vec<Row>,
}

/// What a row of `cachestarts` has: the first pages of a sequence's table, as long as the table is of this version.
#[derive(Debug, Clone, Copy, Default)]
struct Row {
    seq: SeqId,
    version: u64,
    pages: usize,
}

impl Tensors {
    /// Makes the tensors of a step. They are not valid after an error.
    pub(crate) fn fill(
        &mut self,
        spec: &CacheSpec,
        state: &State,
        entries: &[Entry],
        appends: &[Append<'_>],
    ) -> Result<(), Error> {
        self.reshape_cachestarts(spec, state, entries)?;
        for starts in [&mut self.seqstarts, &mut self.kvstarts] {
            starts.clear();
            starts.push(0);
        }
        for values in [&mut self.start_pos, &mut self.positions, &mut self.token_ids, &mut self.cached, &mut self.order]
        {
            values.clear();
        }
        (self.max_seqlen, self.max_kvlen, self.decoding_batches) = (0, 0, 0);
        let (mut tokens, mut rows) = (0, 0);
        for entry in entries {
            let (n, kvlen) = (entry.n as i64, (entry.start + entry.n) as i64);
            (tokens, rows) = (tokens + n, rows + kvlen);
            self.seqstarts.push(tokens);
            self.kvstarts.push(rows);
            self.start_pos.push(entry.start as i64);
            self.cached.push(entry.cached as i64);
            self.order.push(entry.append as i64);
            self.positions.extend(entry.position..entry.position + n);
            match appends[entry.append].known() {
                Some(tokens) => self.token_ids.extend(tokens[entry.cached..].iter().map(|&token| i64::from(token))),
                None => self.token_ids.resize(self.token_ids.len() + entry.n, -1),
            }
            self.max_seqlen = self.max_seqlen.max(n);
            self.max_kvlen = self.max_kvlen.max(kvlen);
            self.decoding_batches += i64::from(n == 1);
        }
        self.fill_cachestarts(spec, state, entries);
        Ok(())
    }

    /// Gives `cachestarts` the shape of a step. What a fixed width makes of many entries may be more than there is
    /// memory for.
    fn reshape_cachestarts(&mut self, spec: &CacheSpec, state: &State, entries: &[Entry]) -> Result<(), Error> {
        let widest = || entries.iter().map(|entry| state.sequences[entry.seq].table.len()).max().unwrap_or(0);
        let shape = (entries.len(), spec.max_pages().unwrap_or_else(widest));
        if self.cachestarts.dim() == shape {
            return Ok(());
        }
        // A product that overflows is more than any allocation, too.
        let len = shape.0.saturating_mul(shape.1);
        self.rows.clear();
        let mut memory = std::mem::take(&mut self.cachestarts).into_raw_vec_and_offset().0;
        memory.clear();
        memory.try_reserve(len).map_err(|_| Error::OutOfMemory { len, size: size_of::<i64>() })?;
        memory.resize(len, -1);
        self.cachestarts =
            Array2::from_shape_vec(shape, memory).unwrap_or_else(|_| unreachable!("resized to the shape's length"));
        Ok(())
    }

    /// Writes what the last step has not left in its place: new pages, where the batch is the same.
    fn fill_cachestarts(&mut self, spec: &CacheSpec, state: &State, entries: &[Entry]) {
        let width = self.cachestarts.ncols();
        self.rows.resize(entries.len(), Row::default());
        let memory = self.cachestarts.as_slice_mut().unwrap_or_else(|| unreachable!("made from a vector"));
        for ((entry, row), starts) in entries.iter().zip(&mut self.rows).zip(memory.chunks_exact_mut(width.max(1))) {
            let sequence = &state.sequences[entry.seq];
            if (row.seq, row.version) != (entry.seq, sequence.version) || entry.replaced {
                starts.fill(-1);
                *row = Row { seq: entry.seq, version: sequence.version, pages: 0 };
            }
            for (start, &page) in starts.iter_mut().zip(&sequence.table).skip(row.pages) {
                *start = page as i64 * spec.page_size() as i64;
            }
            row.pages = sequence.table.len();
        }
    }

    /// What is in the rows of `cachestarts` is no longer true.
    pub(crate) fn forget_rows(&mut self) {
        self.rows.clear();
        self.cachestarts.fill(-1);
    }

    pub(crate) fn index_inputs(&self) -> IndexInputs<'_> {
        IndexInputs {
            seqstarts: (&self.seqstarts).into(),
            kvstarts: (&self.kvstarts).into(),
            cachestarts: (&self.cachestarts).into(),
            start_pos: (&self.start_pos).into(),
            max_seqlen: (&self.max_seqlen).into(),
            max_kvlen: (&self.max_kvlen).into(),
        }
    }
}
