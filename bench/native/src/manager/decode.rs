//! Steps of sequences that decode: one more token for each, step after step.

use kvcache_manager::{Append, Manager, Rope, SeqId};

use crate::manager::case::{self, Case, Meter};
use crate::manager::setup::{NoBytes, paged, step, text};

/// Rows of a page.
const PAGE_SIZE: usize = 16;
/// Steps that are measured in one go: each sequence takes four pages meanwhile.
const STEPS: usize = 64;
/// Rows by which the longest sequence is ahead of the shortest, so that their pages end in different steps.
const SPREAD: usize = PAGE_SIZE;

/// Sequences of about equal length, which the manager knows the tokens of. After each measurement they are cut back.
pub(crate) struct Decode {
    manager: Manager,
    seqs: Vec<SeqId>,
    /// The rows of each sequence when a measurement begins.
    lens: Vec<usize>,
    /// The token of the next steps: another one each time, so that no page is found in the prefix index.
    token: u32,
    /// What the tensors of a step are copied to.
    copied: Vec<i64>,
}

/// The tensors of a step: `seqstarts`, `kvstarts`, `start_pos`, `cachestarts` row after row, token ids, positions, and
/// `max_seqlen` with `max_kvlen`.
type Tensors = [Vec<i64>; 7];

/// The length of sequence `i` when a measurement begins.
fn len(i: usize, kvlen: usize) -> usize {
    kvlen + i % SPREAD
}

impl Decode {
    /// `batch` sequences of `kvlen` rows in a cache of `max_t` slots. `max_pages` fixes the columns of `cachestarts`,
    /// unless it is 0. Beside them there are `idle` sequences of a row each, in no step.
    ///
    /// # Errors
    /// If they do not fit.
    pub(crate) fn new(batch: usize, kvlen: usize, max_t: usize, max_pages: usize, idle: usize) -> Result<Self, String> {
        let mut builder = paged(max_t, PAGE_SIZE).rope(Rope::neox(2, 1e4));
        if max_pages > 0 {
            builder = builder.max_pages(max_pages);
        }
        let mut manager = Manager::new(builder.build().map_err(text)?).map_err(text)?;
        let lens: Vec<usize> = (0..batch).map(|i| len(i, kvlen)).collect();
        let mut seqs = Vec::with_capacity(batch);
        for (i, &len) in (0..).zip(&lens) {
            let seq = manager.create();
            // The first token is the sequence's own, so that nothing is shared.
            let prompt: Vec<u32> = (0..len as u32).map(|t| if t == 0 { i } else { t }).collect();
            step(&mut manager, &[Append::tokens(seq, &prompt)])?;
            seqs.push(seq);
        }
        for _ in 0..idle {
            let seq = manager.create();
            step(&mut manager, &[Append::count(seq, 1)])?;
        }
        Ok(Self { manager, seqs, lens, token: 0, copied: Vec::new() })
    }

    /// Decodes with tokens that are known. In the end, all pages that are taken are evicted from the prefix index.
    fn decode_tokens(&mut self, changed: bool) -> Result<Meter, String> {
        self.token += 1;
        let tokens = [self.token];
        let appends: Vec<_> = self.seqs.iter().map(|&seq| Append::tokens(seq, &tokens)).collect();
        self.decode(appends, changed)
    }

    /// Decodes: one step that does not count, then [`STEPS`] that do, of the same batch in the same order or, if
    /// `changed`, each in another order than the step before it.
    fn decode(&mut self, appends: Vec<Append<'_>>, changed: bool) -> Result<Meter, String> {
        let mut others = appends.clone();
        others.rotate_left(usize::from(changed));
        let Self { manager, .. } = self;
        step(manager, &appends)?;
        let mut meter = Meter::default();
        meter.run(STEPS, || (0..STEPS).try_for_each(|i| step(manager, if i % 2 == 0 { &others } else { &appends })))?;
        self.cut_back()?;
        Ok(meter)
    }

    fn cut_back(&mut self) -> Result<(), String> {
        for (&seq, &len) in self.seqs.iter().zip(&self.lens) {
            self.manager.seq_rm(seq, len as i64..).map_err(text)?;
        }
        Ok(())
    }

    /// One step, whose tensors are copied.
    fn step_tensors(&mut self, appends: &[Append<'_>]) -> Result<Tensors, String> {
        let planned = self.manager.begin_step(appends).map_err(text)?;
        let step = planned.apply(&mut NoBytes::default()).map_err(text)?;
        let tensors = [
            step.seqstarts().to_vec(),
            step.kvstarts().to_vec(),
            step.start_pos().to_vec(),
            step.cachestarts().iter().copied().collect(),
            step.token_ids().to_vec(),
            step.positions().to_vec(),
            vec![step.max_seqlen(), step.max_kvlen()],
        ];
        step.commit();
        Ok(tensors)
    }

    /// The tensors of the step that has just been made, computed anew from the slots of each sequence in it.
    fn expected(&self, seqs: &[SeqId], columns: usize) -> Result<Tensors, String> {
        let (mut seqstarts, mut kvstarts, mut starts, mut ids) = (vec![0], vec![0], Vec::new(), Vec::new());
        let mut cachestarts = Vec::new();
        for &seq in seqs {
            let slots: Vec<usize> = self.manager.slots(seq).map_err(text)?.collect();
            seqstarts.push(seqstarts.len() as i64);
            kvstarts.push(kvstarts.last().copied().unwrap_or_default() + slots.len() as i64);
            starts.push(slots.len() as i64 - 1);
            ids.push(self.token.into());
            let pages = slots.chunks(PAGE_SIZE);
            if let Some(page) = pages.clone().find(|page| page.iter().zip(page[0]..).any(|(&slot, at)| slot != at)) {
                return Err(format!("the slots of a page are {page:?}"));
            }
            let unused = columns.checked_sub(pages.len()).ok_or("cachestarts has too few columns")?;
            cachestarts.extend(pages.map(|page| page[0] as i64));
            cachestarts.extend(vec![-1; unused]);
        }
        let max_lens = vec![1, starts.iter().max().map_or(0, |start| start + 1)];
        Ok([seqstarts, kvstarts, starts.clone(), cachestarts, ids, starts, max_lens])
    }
}

impl Case for Decode {
    fn check(&mut self) -> Result<(), String> {
        self.token += 1;
        let tokens = [self.token];
        let mut seqs = self.seqs.clone();
        // Past the end of a page, in the same order and in others.
        for i in 0..2 * PAGE_SIZE {
            let appends: Vec<_> = seqs.iter().map(|&seq| Append::tokens(seq, &tokens)).collect();
            let tensors = self.step_tensors(&appends)?;
            let expected = self.expected(&seqs, tensors[3].len() / seqs.len())?;
            if tensors != expected {
                return Err(format!("the tensors of step {i} are not those of its sequences' slots"));
            }
            seqs.rotate_left(i % 2);
        }
        self.manager.check().map_err(text)?;
        self.cut_back()
    }

    fn measure(&mut self, contender: &str) -> Result<Meter, String> {
        match contender {
            "same batch" => self.decode_tokens(false),
            "changed batch" => self.decode_tokens(true),
            // Their pages are free again when they are cut back.
            "same batch, tokens unknown" | "changed batch, tokens unknown" => {
                let appends = self.seqs.iter().map(|&seq| Append::count(seq, 1)).collect();
                self.decode(appends, contender.starts_with("changed"))
            }
            "memcpy" => {
                let tokens = [self.token];
                let appends: Vec<_> = self.seqs.iter().map(|&seq| Append::tokens(seq, &tokens)).collect();
                let tensors = self.step_tensors(&appends)?;
                self.cut_back()?;
                let mut meter = Meter::default();
                self.copied.resize(tensors.concat().len(), 0);
                meter.run(STEPS, || {
                    for _ in 0..STEPS {
                        let mut rest = std::hint::black_box(&mut self.copied[..]);
                        for tensor in std::hint::black_box(&tensors) {
                            let (to, behind) = std::mem::take(&mut rest).split_at_mut(tensor.len());
                            to.copy_from_slice(tensor);
                            rest = behind;
                        }
                    }
                });
                Ok(meter)
            }
            _ => case::unknown(contender),
        }
    }
}
