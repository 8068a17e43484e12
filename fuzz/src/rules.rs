//! The rules of indices, written once more: what each token's slot is, with numbers that cannot overflow.

use std::collections::HashSet;

use crate::call::Call;

impl Call {
    /// Which rule of its indices a call breaks whose shapes and types agree, if any. For the operators over a cache of
    /// dynamic batching.
    pub fn broken_rule(&self) -> Option<String> {
        let values = |name: &str| -> Vec<i128> {
            let operand = self.operand(name);
            operand.map_or_else(Vec::new, |operand| {
                let len = operand.shape.iter().product();
                let values: Vec<_> = operand.values().into_iter().map(i128::from).collect();
                values.into_iter().cycle().take(len).collect()
            })
        };
        let [seqstarts, kvstarts, start_pos] = ["seqstarts", "kvstarts", "start_pos"].map(values);
        for (name, starts) in [("seqstarts", &seqstarts), ("kvstarts", &kvstarts)] {
            if starts.first() != Some(&0) || !starts.is_sorted() {
                return Some(format!("{name} is {starts:?}"));
            }
        }
        let rows = self.operand("current_key").map(|operand| operand.shape[0] as i128);
        if seqstarts.last().copied() != rows {
            return Some("rows of current_key".to_owned());
        }
        let batch = start_pos.len();
        let seqlens: Vec<_> = seqstarts.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let kvlens: Vec<_> = kvstarts.windows(2).map(|pair| pair[1] - pair[0]).collect();
        if seqlens.len() != batch || kvlens.len() != batch {
            return Some("the number of sequences".to_owned());
        }
        for b in 0..batch {
            if start_pos[b] < 0 || kvlens[b] != start_pos[b] + seqlens[b] {
                return Some(format!("start_pos of sequence {b}"));
            }
        }
        for (name, lengths) in [("max_seqlen", &seqlens), ("max_kvlen", &kvlens)] {
            if values(name)[0] < lengths.iter().copied().max().unwrap_or(0) {
                return Some(name.to_owned());
            }
        }
        if kvlens.iter().sum::<i128>() > 1 << 16 {
            return None; // of a cache whose slots have no bytes
        }
        self.broken_rule_of_slots(&values("cachestarts"), &start_pos, &kvlens)
    }

    fn broken_rule_of_slots(&self, cachestarts: &[i128], start_pos: &[i128], kvlens: &[i128]) -> Option<String> {
        let paged = self.attribute("cache_mode") == 1;
        let page_size = i128::from(self.attribute("page_size"));
        let columns = self.operand("cachestarts").and_then(|operand| operand.shape.get(1)).copied().unwrap_or(1);
        let cache = self.operand("cache").map_or(&[][..], |operand| &operand.shape);
        // Where each layout has the axis of slots.
        let axis = [0, 1, 2, 3][usize::try_from(self.attribute("cache_layout")).unwrap_or(usize::MAX)];
        let max_t = cache[axis] as i128;
        let mut stored = HashSet::new();
        for (b, &kvlen) in kvlens.iter().enumerate() {
            for t in 0..kvlen {
                let slot = match paged {
                    false => cachestarts[b] + t,
                    true => {
                        let page = t / page_size;
                        if page >= columns as i128 {
                            return Some(format!("sequence {b} has more pages than columns"));
                        }
                        cachestarts[b * columns + page as usize] + t % page_size
                    }
                };
                if slot < 0 || slot >= max_t {
                    return Some(format!("token {t} of sequence {b} has slot {slot}"));
                }
                if t >= start_pos[b] && !stored.insert(slot) {
                    return Some(format!("slot {slot} is stored to twice"));
                }
            }
        }
        None
    }
}
