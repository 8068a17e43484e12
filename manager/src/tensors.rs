//! The index tensors of a step, in buffers that every step uses again.

use kvcache_op::IndexInputs;
use ndarray::Array2;

use crate::append::Append;
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
    /// By row of `cachestarts`: whose pages it has, and how many.
    rows: Vec<(SeqId, usize)>,
}

impl Tensors {
    /// Makes the tensors of a step.
    pub(crate) fn fill(&mut self, spec: &CacheSpec, state: &State, entries: &[Entry], appends: &[Append<'_>]) {
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
    }

    /// Writes what the last step has not left in its place: new pages, where the batch is the same.
    fn fill_cachestarts(&mut self, spec: &CacheSpec, state: &State, entries: &[Entry]) {
        let pages = |entry: &Entry| &state.sequences[entry.seq].table;
        let widest = || entries.iter().map(|entry| pages(entry).len()).max().unwrap_or(0);
        let width = spec.max_pages().unwrap_or_else(widest);
        let shape = (entries.len(), width);
        if self.cachestarts.dim() != shape {
            self.forget_rows();
            let mut memory = std::mem::take(&mut self.cachestarts).into_raw_vec_and_offset().0;
            memory.clear();
            memory.resize(entries.len() * width, -1);
            self.cachestarts =
                Array2::from_shape_vec(shape, memory).unwrap_or_else(|_| unreachable!("resized to the shape's length"));
        }
        self.rows.resize(entries.len(), (SeqId::default(), 0));
        let memory = self.cachestarts.as_slice_mut().unwrap_or_else(|| unreachable!("made from a vector"));
        for ((entry, row), starts) in entries.iter().zip(&mut self.rows).zip(memory.chunks_exact_mut(width.max(1))) {
            let table = pages(entry);
            if row.0 != entry.seq || entry.replaced {
                starts.fill(-1);
                *row = (entry.seq, 0);
            }
            for (start, &page) in starts.iter_mut().skip(row.1).zip(table.iter().skip(row.1)) {
                *start = page as i64 * spec.page_size() as i64;
            }
            row.1 = table.len();
        }
    }

    /// What is in the row of a sequence is no longer true.
    pub(crate) fn forget(&mut self, seq: SeqId) {
        for row in self.rows.iter_mut().filter(|row| row.0 == seq) {
            row.0 = SeqId::default();
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
