//! Calls of the operators, legal and illegal: of any types, shapes, attributes and indices.
//!
//! A check does not panic or overflow, and reads no memory that is not there. Of `KeyValueCache` it says what the
//! conformance kit's rules say, by the same kind of error where a call breaks a single one. What is accepted runs on
//! memory of exactly its size, on the reference and on the fast kernel, and both give the same bits; what is refused
//! has written nothing. Attention is accepted by all its kernels or by none, which store the same bits; the outputs of
//! those with fused multiply-adds are the same.

use kvcache_conformance::backends::Backends;
use kvcache_conformance::random::{Plan, Unstructured, any_case, changed_case, changed_input};
use kvcache_conformance::{
    Call, CallResult, Case, Expected, Implementation, Operator, Outcome, Step, Tensor, run_cases,
};
use kvcache_op::{AttentionBackend, Backend, ElementType};
use kvcache_testing::backends::Careless;

pub fn run(bytes: &[u8]) {
    let unstructured = &mut Unstructured::bytes(bytes);
    match unstructured.below(8) {
        0..3 => passes(&any_case(unstructured, false), |backends| backends),
        3..5 => passes(&changed_case(unstructured), Kindless),
        5 => passes(&any_case(unstructured, true), |backends| backends),
        _ => attention(unstructured),
    }
}

fn backends(attention: AttentionBackend, backend: Backend) -> Backends<Careless> {
    Backends { backend, attention, workers: Careless(3) }
}

/// An implementation that says what it refuses, but not why: a call that breaks several rules is refused for any.
struct Kindless(Backends<Careless>);

impl Implementation for Kindless {
    fn run(&self, case: &Case) -> Result<Vec<CallResult>, String> {
        let mut results = self.0.run(case)?;
        for result in &mut results {
            if let Outcome::Refused { kind, .. } = &mut result.outcome {
                *kind = None;
            }
        }
        Ok(results)
    }
}

/// Fails if the case does on what is made of the backends.
fn passes<I: Implementation>(case: &Case, implementation: impl Fn(Backends<Careless>) -> I) {
    for backend in [Backend::Reference, Backend::default()] {
        let implementation = implementation(backends(AttentionBackend::default(), backend));
        let report = run_cases(&implementation, std::slice::from_ref(case));
        assert!(report.failed() == 0, "{}", report.text());
    }
}

/// A call of `MultiHeadCacheAttention` on the cache of another call, legal or not, by every kernel.
fn attention(unstructured: &mut Unstructured) {
    let call = match unstructured.one_in(2) {
        true => changed_case(unstructured).call(0),
        false => Plan::draw(unstructured, 3, 12).call(unstructured),
    };
    let case = attention_case(unstructured, call);
    let (mut first, mut fused) = (None, None);
    for attention in AttentionBackend::all() {
        let results = backends(attention, Backend::default()).run(&case).expect("a case that can be run");
        let [CallResult { outcome, cache, scale }] = &results[..] else { panic!("one call has one result") };
        let output = match outcome {
            Outcome::Done(outputs) => Some(outputs[0].bytes().to_vec()),
            _ => {
                assert!((cache, scale) == (&case.cache, &case.scale), "a call that is refused has written");
                None
            }
        };
        let name = attention.name();
        let stored = (output.is_some(), cache.clone(), scale.clone());
        assert!(*first.get_or_insert_with(|| stored.clone()) == stored, "{name} accepts or stores something else");
        if !["reference", "cpu-portable"].contains(&name) {
            assert!(*fused.get_or_insert_with(|| output.clone()) == output, "{name} gives other bits");
        }
    }
}

/// The call with a query, and sometimes a mask, one of which may be changed.
fn attention_case(unstructured: &mut Unstructured, call: Call) -> Case {
    let operator = Operator::MultiHeadCacheAttention;
    let (t1, current) = (call.t1(), call.inputs["current_key"].shape());
    let [tokens, heads, head_dim] = [0, 1, 2].map(|axis| current.get(axis).copied().unwrap_or(1));
    let repeat = unstructured.within(1, 3);
    let mut attributes = operator.attributes();
    let numbers = [("num_heads", heads * repeat), ("num_kv_heads", heads), ("head_dim", head_dim)];
    let numbers = numbers.map(|(name, number)| (name, number as i64));
    let switches = ["is_causal", "is_alibi"].map(|name| (name, unstructured.below(2) as i64));
    let window = [("local_window_size", unstructured.pick(&[-1, 1, 5]))];
    for (name, value) in call.attributes.into_iter().chain(numbers).chain(switches).chain(window) {
        attributes.entry(name).and_modify(|given| *given = value);
    }
    let mut values = |shape: Vec<usize>| {
        let mut random = unstructured.fork();
        let mut tensor = Tensor::zeros(t1, shape).expect("a small tensor");
        tensor.bytes_mut().iter_mut().for_each(|byte| *byte = random.next() as u8 & 0x3b);
        tensor
    };
    let mut more = vec![("query", values(vec![tokens, heads * repeat, head_dim]))];
    let keys = call.inputs["kvstarts"].shape().iter().product::<usize>() * 12;
    let mask = values(vec![tokens, keys]);
    more.extend(unstructured.one_in(3).then_some(("attn_mask", mask)));
    let decoding = i64::from(unstructured.one_in(4)).to_le_bytes();
    more.push(("decoding_batches", Tensor::new(ElementType::Int64, vec![1], &decoding).expect("a number")));
    if unstructured.one_in(4) {
        let at = unstructured.below(more.len());
        more[at].1 = changed_input(unstructured, &more[at].1);
    }
    let expected = Expected::Refusal { kind: String::new(), mentions: Vec::new() };
    Case {
        operator,
        attributes,
        outputs: &["attn_output"],
        cache: call.cache,
        scale: call.scale,
        steps: vec![Step { inputs: call.inputs.into_iter().chain(more).collect(), expected }],
        ..changed_case(&mut Unstructured::seed(0))
    }
}
