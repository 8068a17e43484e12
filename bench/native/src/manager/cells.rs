//! A step of unified cells: the search for free ones and the mask, against loops over a set of ids for each cell.

use std::collections::BTreeSet;

use kvcache_manager::{Append, CacheSpec, Geometry, Manager, MaskSpec, Mode, SeqId};
use kvcache_op::ElementType;

use crate::manager::case::{self, Case, Meter};
use crate::manager::setup::{NoBytes, step, text};

/// The cells that a step reads, and the rows of its mask, are a multiple of this.
const PAD: usize = 32;
/// Cells that stay free.
const FREE: usize = 256;
/// Searches and masks that are measured in one go.
const STEPS: usize = 4;

/// A cell of the peer, llama.cpp's unified cache: the position of its row, and the sequences that have it.
#[derive(Default, Clone)]
struct Cell {
    position: i64,
    ids: BTreeSet<usize>,
}

/// The peer's cells, with its loops.
struct CellSets {
    cells: Vec<Cell>,
    head: usize,
    used: usize,
}

impl CellSets {
    /// Finds `n` free cells in a row, from the head on.
    fn find_slot(&self, n: usize) -> Option<usize> {
        let size = self.cells.len();
        let mut head = if self.head > self.used + 2 * n { 0 } else { self.head };
        let mut tested = 0;
        while tested < size {
            if head + n > size {
                (tested, head) = (tested + size - head, 0);
                continue;
            }
            match self.cells[head..head + n].iter().position(|cell| !cell.ids.is_empty()) {
                Some(i) => (tested, head) = (tested + i + 1, head + i + 1),
                None => return Some(head),
            }
        }
        None
    }

    /// The mask of queries, each of a sequence and at a position, over the first `n_kv` cells, in whole [`PAD`] rows.
    fn mask(&self, queries: &[(usize, i64)], n_kv: usize, mask: &mut [f32]) {
        mask[queries.len() * n_kv..].fill(f32::NEG_INFINITY);
        for (row, &(id, position)) in mask.chunks_exact_mut(n_kv).zip(queries) {
            for (value, cell) in row.iter_mut().zip(&self.cells) {
                let hidden = !cell.ids.contains(&id) || cell.position > position;
                *value = if hidden { f32::NEG_INFINITY } else { 0.0 };
            }
        }
    }
}

/// Sequences that fill nearly all cells: half of each is a prompt, in one piece; the other half was decoded together
/// with the others, so that no two neighboring cells are one sequence's. A cell near the first one is free, from which
/// the search begins; the cells that it finds are the last.
pub(crate) struct Cells {
    manager: Manager,
    seqs: Vec<SeqId>,
    sets: CellSets,
    mask: Vec<f32>,
    mask_of_sets: Vec<f32>,
}

impl Cells {
    /// Sequences in a cache of so many cells.
    ///
    /// # Errors
    /// If they do not fit.
    pub(crate) fn new(cells: usize, sequences: usize) -> Result<Self, String> {
        let geometry = Geometry { num_layer: 1, num_heads: 1, head_dim: 2, max_t: cells };
        let builder = CacheSpec::builder(geometry).cache_type(ElementType::Float32).mode(Mode::Cells).pad(PAD);
        let mut manager = Manager::new(builder.build().map_err(text)?).map_err(text)?;
        let seqs: Vec<SeqId> = (0..sequences).map(|_| manager.create()).collect();
        let half = (cells - FREE) / sequences / 2;
        for &seq in &seqs {
            step(&mut manager, &[Append::count(seq, half)])?;
        }
        let decode: Vec<_> = seqs.iter().map(|&seq| Append::count(seq, 1)).collect();
        for _ in 0..half {
            step(&mut manager, &decode)?;
        }
        manager.seq_rm(seqs[0], 1..2).map_err(text)?;

        let mut sets = CellSets { cells: vec![Cell::default(); cells], head: 1, used: 2 * half * sequences - 1 };
        for (id, &seq) in seqs.iter().enumerate() {
            let positions = manager.positions(seq).map_err(text)?;
            for (slot, position) in manager.slots(seq).map_err(text)?.zip(positions) {
                sets.cells[slot].position = position;
                sets.cells[slot].ids.insert(id);
            }
        }
        Ok(Self { manager, seqs, sets, mask: Vec::new(), mask_of_sets: Vec::new() })
    }

    /// Plans a step of one token each, fills its mask, and rolls it back; gives the first cell that it writes.
    fn plan(&mut self, meter: &mut Meter) -> Result<i64, String> {
        let appends: Vec<_> = self.seqs.iter().map(|&seq| Append::count(seq, 1)).collect();
        let Self { manager, mask, .. } = self;
        let mut memory = NoBytes::default();
        let step = meter.run(1, || {
            let step = manager.begin_step(&appends)?.apply(&mut memory)?;
            let spec = MaskSpec::causal();
            mask.resize(step.mask_shape(&spec).iter().product(), 0.0);
            step.mask_into(&spec, mask)?;
            Ok::<_, kvcache_manager::Error>(step)
        });
        let step = step.map_err(text)?;
        let slot = step.cachestarts()[[0]];
        step.rollback();
        Ok(slot)
    }

    /// The same with the sets.
    fn loops(&mut self, meter: &mut Meter) -> Result<i64, String> {
        let positions = self.seqs.iter().map(|&seq| self.manager.pos_max(seq));
        let positions: Vec<_> = positions.collect::<Result<Option<Vec<_>>, _>>().map_err(text)?.ok_or("no rows")?;
        let Self { sets, mask_of_sets, .. } = self;
        let n = positions.len();
        meter.run(1, || {
            let slot = sets.find_slot(n).ok_or("no free cells")?;
            let queries: Vec<_> = positions.iter().map(|last| last + 1).enumerate().collect();
            for (i, &(id, position)) in queries.iter().enumerate() {
                sets.cells[slot + i].position = position;
                sets.cells[slot + i].ids.insert(id);
            }
            let last = sets.cells.iter().rposition(|cell| !cell.ids.is_empty()).map_or(0, |cell| cell + 1);
            let n_kv = last.next_multiple_of(PAD).max(PAD).min(sets.cells.len());
            mask_of_sets.resize(n.next_multiple_of(PAD) * n_kv, 0.0);
            sets.mask(&queries, n_kv, mask_of_sets);
            sets.cells[slot..slot + n].iter_mut().for_each(|cell| cell.ids.clear());
            Ok(slot as i64)
        })
    }
}

impl Case for Cells {
    fn check(&mut self) -> Result<(), String> {
        let meter = &mut Meter::default();
        let slots = (self.plan(meter)?, self.loops(meter)?);
        if slots.0 != slots.1 {
            return Err(format!("the first cell found is {}, with sets it is {}", slots.0, slots.1));
        }
        let bits = |mask: &[f32]| mask.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        if bits(&self.mask) != bits(&self.mask_of_sets) {
            return Err("the mask is not that of the loops over sets".into());
        }
        let visible = self.mask.iter().filter(|&&value| value == 0.0).count();
        if visible != self.sets.used + self.seqs.len() {
            return Err(format!("{visible} keys are visible"));
        }
        self.manager.check().map_err(text)
    }

    fn measure(&mut self, contender: &str) -> Result<Meter, String> {
        let mut meter = Meter::default();
        for _ in 0..STEPS {
            match contender {
                "find_slot and mask" => self.plan(&mut meter)?,
                "loops over sets" => self.loops(&mut meter)?,
                _ => return case::unknown(contender),
            };
        }
        Ok(meter)
    }
}
