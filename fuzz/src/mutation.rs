//! Changes that make of a legal call another one, mostly an illegal one.

use kvcache_op::ElementType;

use crate::call::{Call, Overlap};
use crate::operand::Operand;
use crate::source::Source;

impl Call {
    /// Changes one thing of the call.
    pub fn mutate(&mut self, source: &mut Source<'_>) {
        match source.below(16) {
            0 | 1 => {
                let i = source.below(self.attributes.len());
                let (_, value) = &mut self.attributes[i];
                *value = source.number_near(*value);
            }
            // Values of indices have the most rules.
            2..7 => self.mutate_index(source),
            7 => {
                let mask = self.operands.iter().position(|operand| operand.name == "attn_mask");
                let i = mask.filter(|_| source.one_in(4)).unwrap_or_else(|| source.below(self.operands.len()));
                mutate_shape(&mut self.operands[i], source);
            }
            8 => self.mutate_dimension(source),
            9 => {
                let i = source.below(self.operands.len());
                self.operands[i].element = source.pick(&ElementType::ALL);
            }
            10 => {
                let optional = source.pick(&["scale", "attn_mask"]);
                let given = self.operands.len();
                self.operands.retain(|operand| operand.name != optional);
                if given == self.operands.len() {
                    let shape: Vec<_> = (0..source.below(7)).map(|_| source.below(4)).collect();
                    let element = source.pick(&ElementType::ALL);
                    self.operands.push(Operand { name: optional, element, shape, bytes: vec![1] });
                }
            }
            11 => self.mutate_pair(source),
            12 | 13 => self.mutate_length(source),
            _ => self.mutate_memory(source),
        }
    }

    /// Gives two tensors that go together another length along an axis.
    fn mutate_pair(&mut self, source: &mut Source<'_>) {
        let pair = source.pick(&[["current_key", "current_value"], ["cache", "scale"]]);
        let axis = source.below(5);
        let of_pair = self.operands.iter_mut().filter(|operand| pair.contains(&operand.name));
        let mut lengths: Vec<_> = of_pair.filter_map(|operand| operand.shape.get_mut(axis)).collect();
        if let Some(before) = lengths.first().map(|len| **len as i64) {
            let after = source.number_near(before) as usize;
            lengths.iter_mut().for_each(|len| **len = after);
        }
    }

    /// Gives a sequence more tokens in the cache, or fewer, also fewer than none: all starts agree as before.
    fn mutate_length(&mut self, source: &mut Source<'_>) {
        let batch = self.operand("kvstarts").map_or(0, |starts| starts.values().len().saturating_sub(1));
        let (b, step) = (source.below(batch), source.number_near(0));
        let mut add = |name: &str, which: &dyn Fn(usize) -> bool| {
            let operand = self.operands.iter_mut().find(|operand| operand.name == name);
            let values = operand.into_iter().flat_map(|operand| operand.bytes.as_chunks_mut::<8>().0).enumerate();
            for (_, value) in values.filter(|&(i, _)| which(i)) {
                *value = i64::from_le_bytes(*value).wrapping_add(step).to_le_bytes();
            }
        };
        add("start_pos", &|i| i == b);
        add("kvstarts", &|i| i > b);
        add("max_kvlen", &|_| step > 0);
    }

    /// Gives an index another value: a number near it, or another index.
    fn mutate_index(&mut self, source: &mut Source<'_>) {
        let of = |operand: &&mut Operand| operand.element == ElementType::Int64 && !operand.bytes.is_empty();
        let mut indices: Vec<_> = self.operands.iter_mut().filter(of).collect();
        let i = source.below(indices.len());
        let Some(operand) = indices.get_mut(i) else { return };
        let (values, _) = operand.bytes.as_chunks_mut::<8>();
        let i = source.below(values.len());
        let other = values.get(source.below(values.len())).copied();
        let Some(value) = values.get_mut(i) else { return };
        *value = match other {
            Some(other) if source.one_in(4) => other,
            _ => source.number_near(i64::from_le_bytes(*value)).to_le_bytes(),
        };
    }

    /// Places a tensor in the memory of another one; one of the two is written.
    fn mutate_memory(&mut self, source: &mut Source<'_>) {
        let inputs: Vec<_> = self.operands.iter().map(|operand| operand.name).collect();
        let outputs: &[_] = if self.operand("query").is_some() { &["attn_output"] } else { &["key", "value"] };
        let written: Vec<_> = inputs.iter().copied().filter(|name| ["cache", "scale"].contains(name)).collect();
        let (name, of) = match (source.below(4), &written[..]) {
            (3, _) => (source.pick(&inputs), source.pick(outputs)),
            (0, _) | (_, []) => (source.pick(outputs), source.pick(&inputs)),
            (1, _) => (source.pick(&inputs), source.pick(&written)),
            _ => (source.pick(&written), source.pick(&inputs)),
        };
        let len = |name| self.operand(name).cloned().or_else(|| self.output(name)).and_then(|operand| operand.len());
        let (inner, outer) = (len(name), len(of));
        if let (Some(inner), Some(outer)) = (inner, outer)
            && name != of
            && inner <= outer
        {
            let offset = source.below((outer - inner) / 8 + 1) * 8;
            self.overlap = Some(Overlap { name, of, offset });
        }
    }

    /// Gives a dimension another length, wherever there is one of this length: shapes agree as before, mostly.
    fn mutate_dimension(&mut self, source: &mut Source<'_>) {
        let i = source.below(self.operands.len());
        let shape = &self.operands[i].shape;
        let Some(&before) = shape.get(source.below(shape.len())) else { return };
        let after = source.number_near(before as i64);
        for len in self.operands.iter_mut().flat_map(|operand| &mut operand.shape).filter(|len| **len == before) {
            *len = after as usize;
        }
        for (name, value) in &mut self.attributes {
            if ["num_heads", "num_kv_heads", "head_dim"].contains(name) && *value == before as i64 {
                *value = after;
            }
        }
    }
}

fn mutate_shape(operand: &mut Operand, source: &mut Source<'_>) {
    let axis = source.below(operand.shape.len());
    match source.below(6) {
        0 => operand.shape.insert(axis, source.below(3)),
        1 if !operand.shape.is_empty() => {
            operand.shape.remove(axis);
        }
        2 if !operand.shape.is_empty() => operand.shape[axis] = 0,
        _ => {
            if let Some(len) = operand.shape.get_mut(axis) {
                *len = source.number_near(*len as i64) as usize;
            }
        }
    }
}
