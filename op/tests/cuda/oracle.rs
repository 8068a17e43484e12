//! The oracle of calls on a device with any index inputs, legal or not. Works token by token: each is a call of the
//! reference kernel with one slot.

use kvcache_conformance::backends::{read, write};
use kvcache_conformance::{Tensor, Tensors};
use kvcache_op::cuda::{Finding, Status};
use kvcache_op::{Attributes, Backend, CacheMode, IndexInputs, Inputs, KeyValueCache, Serial};

use crate::device::{Outputs, untouched};

pub struct Oracle<'a> {
    pub attributes: &'a Attributes,
    pub inputs: &'a Tensors,
    pub cache: &'a mut Tensor,
    pub scale: Option<&'a mut Tensor>,
}

pub fn numbers(tensor: &Tensor) -> Vec<i64> {
    tensor.bytes().chunks_exact(8).map(|bytes| i64::from_le_bytes(bytes.try_into().expect("8 bytes"))).collect()
}

impl Oracle<'_> {
    /// The outputs, and every status that the device may report.
    pub fn run(mut self) -> (Outputs, Vec<Status>) {
        let inputs = self.inputs;
        let (seqstarts, start_pos) = (numbers(&inputs["seqstarts"]), numbers(&inputs["start_pos"]));
        let output_rows = numbers(&inputs["kvstarts"]).last().copied().expect("at least the total");
        let [rows, num_heads, head_dim] = inputs["current_key"].shape().try_into().expect("rank 3");
        let shape = [output_rows as usize, num_heads * self.attributes.num_repeat as usize, head_dim];
        let t1 = inputs["current_key"].element();
        let mut outputs = Outputs { key: untouched(t1, &shape), value: untouched(t1, &shape) };

        let batch = start_pos.len();
        let mut findings = Vec::new();
        // What has no rows, or rows without elements, is not launched.
        let is_launched = |rows: i64| rows > 0 && num_heads * head_dim > 0;
        if !is_launched(rows as i64) && !is_launched(output_rows) {
            return (outputs, findings);
        }
        let status = |finding, batch: usize, token: i128| {
            let token = token.min(i128::from(u32::MAX)) as u32;
            Status { finding, batch: batch as u32, token }
        };
        for b in 0..batch {
            let (start, end) = (seqstarts[b], seqstarts[b + 1]);
            if start < 0 || end < start || (b == 0 && start != 0) {
                findings.push(status(Finding::Seqstarts, b, 0));
            } else if start_pos[b] < 0 {
                findings.push(status(Finding::StartPos, b, 0));
            }
        }
        if !findings.is_empty() || batch == 0 {
            return (outputs, findings);
        }
        let seqlen = |b: usize| seqstarts[b + 1] - seqstarts[b];
        let totals = [
            (0..batch).map(|b| i128::from(seqlen(b))).sum::<i128>(),
            (0..batch).map(|b| i128::from(start_pos[b]) + i128::from(seqlen(b))).sum(),
        ];
        for (phase, (total, rows)) in totals.into_iter().zip([rows as i64, output_rows]).enumerate() {
            if !is_launched(rows) {
                continue;
            }
            if total > i128::from(rows) {
                findings.push(status(Finding::TooManyTokens, batch, 0));
                continue;
            }
            if total < i128::from(rows) {
                findings.push(status(Finding::TooFewTokens, batch, 0));
            }
            let mut row = 0;
            for (b, &start_pos) in start_pos.iter().enumerate() {
                // The store begins behind the past tokens.
                let past = i128::from(start_pos);
                let tokens = past * (1 - phase as i128)..past + i128::from(seqlen(b));
                for token in tokens {
                    match (self.slot(b, token), phase) {
                        (Err(finding), _) => findings.push(status(finding, b, token)),
                        (Ok(slot), 0) => self.store(row, slot),
                        (Ok(slot), _) => self.load(row, slot, &mut outputs),
                    }
                    row += 1;
                }
            }
        }
        (outputs, findings)
    }

    fn slot(&self, b: usize, token: i128) -> Result<i64, Finding> {
        let cachestarts = numbers(&self.inputs["cachestarts"]);
        let max_t = self.max_t();
        // In offset mode a sequence is one page, as long as an index can be.
        let (max_p, page_size) = match self.attributes.cache_mode == CacheMode::Offset.code() {
            true => (1, i64::MAX),
            false => (self.inputs["cachestarts"].shape()[1], self.attributes.page_size),
        };
        let page = token / i128::from(page_size);
        if page >= max_p as i128 {
            return Err(Finding::TooManyPages);
        }
        let (start, skip) = (cachestarts[b * max_p + page as usize], token % i128::from(page_size));
        let slot = i128::from(start) + skip;
        // A page that starts outside is wrong even where a token of it would be inside.
        if start < 0 || i128::from(start) >= max_t || slot >= max_t { Err(Finding::Slot) } else { Ok(slot as i64) }
    }

    fn max_t(&self) -> i128 {
        let layout = kvcache_op::CacheLayout::from_code(self.attributes.cache_layout).expect("a legal layout");
        layout.dims(self.cache.shape().try_into().expect("rank 5")).max_t as i128
    }

    fn store(&mut self, row: usize, slot: i64) {
        let inputs = self.inputs;
        let current = [row_of(&inputs["current_key"], row), row_of(&inputs["current_value"], row)];
        self.one_token(current, [0, 1], 0, slot);
    }

    fn load(&mut self, row: usize, slot: i64, outputs: &mut Outputs) {
        let empty = |tensor: &Tensor| {
            let mut shape = tensor.shape().to_vec();
            shape[0] = 0;
            Tensor::zeros(tensor.element(), shape).expect("no bytes")
        };
        let current = [empty(&self.inputs["current_key"]), empty(&self.inputs["current_value"])];
        let loaded = self.one_token(current, [0, 0], 1, slot);
        for (to, from) in [&mut outputs.key, &mut outputs.value].into_iter().zip(loaded) {
            let len = from.bytes().len();
            to.bytes_mut()[row * len..][..len].copy_from_slice(from.bytes());
        }
    }

    /// A call of one token, which is in the cache at this slot afterwards.
    fn one_token(&mut self, current: [Tensor; 2], seqstarts: [i64; 2], start_pos: i64, slot: i64) -> [Tensor; 2] {
        let attributes = Attributes { cache_mode: CacheMode::Offset.code(), ..self.attributes.clone() };
        let op = KeyValueCache::new(attributes).expect("the call's own attributes").with_backend(Backend::Reference);
        let (cachestarts, start_pos) = ([slot], [start_pos]);
        let inputs = Inputs {
            current_key: read(&current[0]),
            current_value: read(&current[1]),
            indices: IndexInputs {
                seqstarts: (&seqstarts).into(),
                kvstarts: (&[0, 1]).into(),
                cachestarts: (&cachestarts).into(),
                start_pos: (&start_pos).into(),
                max_seqlen: (&1).into(),
                max_kvlen: (&1).into(),
            },
        };
        let call = op.check(&inputs, write(self.cache), self.scale.as_deref_mut().map(write)).expect("a legal token");
        let output = || Tensor::zeros(current[0].element(), call.output_shape().to_vec()).expect("it fits in memory");
        let mut outputs = [output(), output()];
        let [key, value] = outputs.each_mut().map(write);
        call.run(kvcache_op::Outputs { key, value }, &Serial).expect("outputs of its shape");
        outputs
    }
}

fn row_of(tensor: &Tensor, row: usize) -> Tensor {
    let mut shape = tensor.shape().to_vec();
    shape[0] = 1;
    let len = tensor.bytes().len() / tensor.shape()[0];
    Tensor::new(tensor.element(), shape, &tensor.bytes()[row * len..][..len]).expect("a row's bytes")
}
