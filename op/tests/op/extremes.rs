//! Legal calls at the ends of what attributes and shapes can say.

use kvcache_op::{Attributes, Backend, IndexInputs, Inputs, KeyValueCache, Outputs, Serial};
use ndarray::{Array3, Array5};

/// The inputs of one sequence of so many tokens, of which so many are new.
fn inputs<'a>(current: &'a Array3<f32>, lens: &'a [[i64; 2]; 2], start_pos: &'a [i64; 1]) -> Inputs<'a> {
    let [seqstarts, kvstarts] = lens;
    Inputs {
        current_key: current.into(),
        current_value: current.into(),
        indices: IndexInputs {
            seqstarts: seqstarts.into(),
            kvstarts: kvstarts.into(),
            cachestarts: (&[0]).into(),
            start_pos: start_pos.into(),
            max_seqlen: (&1).into(),
            max_kvlen: (&3).into(),
        },
    }
}

/// Runs a call of one sequence without tokens on every backend.
fn run_without_tokens(
    attributes: Attributes,
    current: (usize, usize, usize),
    cache: (usize, usize, usize, usize, usize),
) {
    for backend in Backend::all() {
        let op = KeyValueCache::new(attributes.clone()).unwrap().with_backend(backend);
        let current = Array3::<f32>::zeros(current);
        let mut cache = Array5::<f32>::zeros(cache);
        let inputs = inputs(&current, &[[0, 0], [0, 0]], &[0]);
        let call = op.check(&inputs, (&mut cache).into(), None).unwrap();
        let (mut key, mut value) = (Array3::<f32>::zeros((0, 0, 0)), Array3::<f32>::zeros((0, 0, 0)));
        let shape = &call.outputs()[0].shape.clone();
        assert_eq!(shape[0], 0, "{backend:?}");
        // SAFETY: an output without elements is not accessed.
        let output = |array: &mut Array3<f32>| unsafe {
            kvcache_op::TensorMut::from_raw_parts(
                kvcache_op::ElementType::Float32,
                shape.clone(),
                array.as_mut_ptr().cast(),
            )
        };
        call.run(Outputs { key: output(&mut key), value: output(&mut value) }, &Serial).unwrap();
    }
}

#[test]
fn without_tokens_the_size_of_one_need_not_fit_in_memory() {
    let attributes = Attributes { num_repeat: i64::MAX, ..Attributes::default() };
    run_without_tokens(attributes, (0, 1, 64), (4, 1, 2, 1, 64));
    run_without_tokens(Attributes::default(), (0, 1 << 30, 1 << 30), (0, 1, 2, 1 << 30, 1 << 30));
    // Nor that of a head.
    run_without_tokens(Attributes::default(), (0, 1, 1 << 59), (0, 1, 2, 1, 1 << 59));
}

/// Heads without elements are not walked through: there may be any number of them.
#[test]
fn heads_without_elements_may_be_any_number() {
    for backend in Backend::all() {
        let attributes = Attributes { num_repeat: 1 << 40, ..Attributes::default() };
        let op = KeyValueCache::new(attributes).unwrap().with_backend(backend);
        let current = Array3::<f32>::zeros((1, 1 << 20, 0));
        let mut cache = Array5::<f32>::zeros((4, 1, 2, 1 << 20, 0));
        let inputs = inputs(&current, &[[0, 1], [0, 3]], &[2]);
        let (key, value) = op.run_alloc::<f32>(&inputs, (&mut cache).into(), None, &Serial).unwrap();
        assert_eq!((key.dim(), value.dim()), ((3, 1 << 60, 0), (3, 1 << 60, 0)), "{backend:?}");
    }
}
