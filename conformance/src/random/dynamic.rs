//! Random cases of dynamic batching.

use kvcache_schema::{Attributes, CacheDims, CacheLayout};

use super::defects::{broken, case, change_inputs, change_node};
use super::entropy::{Entropy, indices};
use super::plan::{Node, Planned};
use crate::case::{Case, StepInputs};

/// So many cases of a seed, named `random-SEED-I`.
pub fn cases(n: usize, seed: u64) -> Vec<Case> {
    (0..n).map(|i| random_case(seed, i)).collect()
}

fn random_case(seed: u64, i: usize) -> Case {
    case_of(&mut Entropy::case(seed, i), format!("random-{seed}-{i}"))
}

/// A case of small calls, all of them legal or one that breaks a rule.
pub fn any_case(entropy: &mut Entropy) -> Case {
    case_of(entropy, "any".to_owned())
}

fn made(entropy: &mut Entropy) -> (Node, Planned, usize) {
    let node = Node::draw(entropy);
    let layout = entropy.pick(&CacheLayout::ALL);
    let max_t = match entropy.below(48) {
        0..6 => entropy.below(2),
        6..18 => entropy.within(30, 50),
        18 => entropy.within(250, 300),
        _ => entropy.within(2, 12),
    };
    let attributes = Attributes {
        num_layer: node.num_layer as i64,
        layer_idx: node.layer_idx as i64,
        quant_bit: node.quant_bit,
        quant_group: node.quant_group as i64,
        num_repeat: node.num_repeat as i64,
        cache_mode: entropy.below(2) as i64,
        cache_layout: layout.code(),
        page_size: entropy.pick(&[1, 2, 3, 4, 5, 8, 128, i64::MAX]),
        ..Attributes::default()
    };
    let dims = CacheDims { max_t, num_layer: node.num_layer, num_heads: node.num_heads, inner: node.head_dim };
    let cache = node.cache(entropy, &layout.shape(dims));
    let scale = node.scale(entropy, &layout.shape(CacheDims { inner: node.groups(), ..dims }));
    let inputs = Sequences::default().inputs(entropy, &node, &attributes);
    let on = Planned { types: node.types, attributes, inputs, cache, scale };
    (node, on, max_t)
}

pub(super) fn planned(entropy: &mut Entropy) -> Planned {
    let (node, mut on, max_t) = made(entropy);
    on.inputs = legal_call(entropy, &node, &on, max_t);
    on
}

fn case_of(entropy: &mut Entropy, name: String) -> Case {
    let (node, mut on, max_t) = made(entropy);
    let mut calls: Vec<_> = (0..entropy.within(1, 4)).map(|_| legal_call(entropy, &node, &on, max_t)).collect();
    let mut about = "Random legal calls.";
    match entropy.below(6) {
        3 => {
            on.inputs = calls.remove(0);
            on.defect(entropy, change_node);
            calls = vec![on.inputs.clone()];
            about = "A random call on a node that is not legal, or on one that is.";
        }
        4 | 5 => {
            let at = entropy.below(calls.len());
            let mut call = Planned { inputs: calls[at].clone(), ..on.clone() };
            call.defect(entropy, change_inputs);
            calls.insert(at, call.inputs);
            about = "Random legal calls, and one that is refused between them.";
        }
        _ => {}
    }
    case(name, about, on, calls)
}

/// A legal call: one that is drawn until it breaks no rule, and stores less each time that it does.
fn legal_call(entropy: &mut Entropy, node: &Node, on: &Planned, max_t: usize) -> StepInputs {
    const TRIES: usize = 20;
    for attempt in 0..TRIES {
        let batch = Sequences::draw(entropy, &on.attributes, max_t, attempt);
        let inputs = batch.inputs(entropy, node, &on.attributes);
        if broken(node.types, &on.attributes, &inputs, &on.cache, on.scale.as_ref()) == Ok(None) {
            return inputs;
        }
    }
    Sequences::default().inputs(entropy, node, &on.attributes)
}

#[derive(Debug, Default)]
struct Sequences {
    start_pos: Vec<usize>,
    seqlen: Vec<usize>,
    /// In offset mode one entry each, in paged mode the pages.
    places: Vec<Vec<i64>>,
}

impl Sequences {
    fn draw(entropy: &mut Entropy, attributes: &Attributes, max_t: usize, attempt: usize) -> Self {
        let mut sequences = Self::default();
        let batch = match entropy.below(24) {
            22 | 23 => 0,
            21 => entropy.within(5, 12),
            _ => entropy.within(1, 4),
        };
        let most = if entropy.one_in(4) { max_t } else { max_t.min(9) };
        for _ in 0..batch {
            let kvlen = entropy.below(most + 1);
            // Whoever stores nothing meets nobody.
            let seqlen = match entropy.below(4) {
                0 => 0,
                1 => 1.min(kvlen),
                _ => entropy.below(kvlen + 1) / (attempt + 1),
            };
            sequences.start_pos.push(kvlen - seqlen);
            sequences.seqlen.push(seqlen);
            sequences.places.push(place(entropy, attributes, max_t, kvlen));
        }
        // A shared prefix: the pages before the first that is stored to are those of another sequence.
        if attributes.cache_mode == 1 && batch > 1 && entropy.one_in(2) {
            let (from, to) = (entropy.below(batch), entropy.below(batch));
            let whole = (sequences.start_pos[to] as i64 / attributes.page_size) as usize;
            let shared = whole.min(sequences.places[from].len());
            let pages = sequences.places[from][..shared].to_vec();
            sequences.places[to].splice(..shared, pages);
        }
        sequences
    }

    fn inputs(&self, entropy: &mut Entropy, node: &Node, attributes: &Attributes) -> StepInputs {
        let batch = self.seqlen.len();
        let kvlens: Vec<_> = self.start_pos.iter().zip(&self.seqlen).map(|(past, new)| past + new).collect();
        let starts = |lens: &[usize]| {
            let mut starts = vec![0];
            lens.iter().for_each(|&len| starts.push(starts[starts.len() - 1] + len as i64));
            starts
        };
        let cachestarts = if attributes.cache_mode == 0 {
            indices(&[batch], &self.places.concat())
        } else {
            let spare = entropy.below(3);
            let max_p = self.places.iter().map(Vec::len).max().unwrap_or(0) + spare;
            let filler = entropy.pick(&[-1, -1, 0, i64::MIN, i64::MAX]);
            let row = |pages: &Vec<i64>| [pages.clone(), vec![filler; max_p - pages.len()]].concat();
            indices(&[batch, max_p], &self.places.iter().flat_map(row).collect::<Vec<_>>())
        };
        let tokens = [self.seqlen.iter().sum(), node.num_heads, node.head_dim];
        let mut bound = |lens: &[usize]| {
            let exact = lens.iter().max().map_or(0, |&len| len as i64);
            let value = entropy.pick(&[exact, exact, exact, exact + 1, exact + 60, i64::MAX]);
            indices(entropy.pick(&[&[][..], &[1][..]]), &[value])
        };
        let (max_seqlen, max_kvlen) = (bound(&self.seqlen), bound(&kvlens));
        let start_pos: Vec<_> = self.start_pos.iter().map(|&start| start as i64).collect();
        StepInputs {
            current_key: node.current(entropy, &tokens),
            current_value: node.current(entropy, &tokens),
            seqstarts: indices(&[batch + 1], &starts(&self.seqlen)),
            kvstarts: indices(&[batch + 1], &starts(&kvlens)),
            cachestarts,
            start_pos: indices(&[batch], &start_pos),
            max_seqlen,
            max_kvlen,
        }
    }
}

/// Where a sequence of so many tokens lies.
fn place(entropy: &mut Entropy, attributes: &Attributes, max_t: usize, kvlen: usize) -> Vec<i64> {
    if attributes.cache_mode == 0 {
        return vec![entropy.below(max_t - kvlen + 1) as i64];
    }
    let page_size = usize::try_from(attributes.page_size).unwrap_or(usize::MAX);
    let page = |p: usize| {
        let used = page_size.min(kvlen - p * page_size);
        let last = max_t - used;
        match entropy.below(3) {
            // A small entry, so that a multiple of it lies in the cache, too.
            0 => entropy.below(last.min(5) + 1) as i64,
            1 => (entropy.below(last / page_size + 1) * page_size) as i64,
            _ => entropy.below(last + 1) as i64,
        }
    };
    (0..kvlen.div_ceil(page_size)).map(page).collect()
}
