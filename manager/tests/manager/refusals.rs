//! Every error, with its numbers. What a refused operation leaves behind is the state machine's matter.

use half::f16;
use kvcache_manager::op::{self, Serial, TensorMut};
use kvcache_manager::schema::{CacheLayout, ElementType, QuantBit};
use kvcache_manager::{
    Append, CacheSpec, CacheSpecBuilder, Error, Geometry, HostMemory, MAX_POSITION, Manager, Mode, SeqId,
};
use ndarray::{Array5, Axis, s};

const GEOMETRY: Geometry = Geometry { num_layer: 2, num_heads: 2, head_dim: 8, max_t: 64 };

fn refused(builder: CacheSpecBuilder) -> Error {
    builder.build().unwrap_err()
}

fn manager() -> Manager {
    Manager::new(CacheSpec::builder(GEOMETRY).mode(Mode::Paged { page_size: 4 }).max_pages(8).build().unwrap()).unwrap()
}

/// The refusal of a step, which changes nothing.
fn refusal(manager: &mut Manager, appends: &[Append<'_>]) -> Error {
    let before = manager.clone();
    let error = manager.begin_step(appends).unwrap_err();
    assert!(*manager == before);
    error
}

#[test]
fn specifications_outside_their_ranges() {
    for (name, geometry) in [
        ("num_layer", Geometry { num_layer: 0, ..GEOMETRY }),
        ("num_heads", Geometry { num_heads: 0, ..GEOMETRY }),
        ("head_dim", Geometry { head_dim: 0, ..GEOMETRY }),
        ("max_t", Geometry { max_t: 0, ..GEOMETRY }),
    ] {
        let error = refused(CacheSpec::builder(geometry).mode(Mode::Paged { page_size: 1 }));
        assert!(matches!(error, Error::SpecRange { name: got, got: 0, min: 1, .. } if got == name), "{error}");
    }
    let builder = || CacheSpec::builder(GEOMETRY).mode(Mode::Paged { page_size: 4 });
    for page_size in [0, 65] {
        let error = refused(builder().mode(Mode::Paged { page_size }));
        assert_eq!(error.to_string(), format!("page_size is {page_size}, expected 1 to 64"));
    }
    let many = Geometry { max_t: u32::MAX as usize, num_layer: 1, num_heads: 1, head_dim: 1 };
    let error = refused(CacheSpec::builder(many).mode(Mode::Paged { page_size: 1 }));
    assert!(matches!(error, Error::SpecRange { name: "max_t / page_size", .. }), "{error}");
    let error = refused(builder().max_pages(0));
    assert!(matches!(error, Error::SpecRange { name: "max_pages", got: 0, .. }), "{error}");
    let error = refused(builder().quant_rotation(true));
    assert_eq!(error.to_string(), "quant_rotation is 1, expected 0 to 0");
    assert_eq!(error.kind(), "spec_range");
}

#[test]
fn types_groups_and_sizes() {
    let builder = || CacheSpec::builder(GEOMETRY).mode(Mode::Paged { page_size: 4 });
    for cache in [ElementType::Int4, ElementType::Int64] {
        let error = refused(builder().cache_type(cache));
        assert!(matches!(error, Error::Types { cache: got, scale: None } if got == cache), "{error}");
    }
    let error = refused(builder().quantized(QuantBit::Eight, 8, ElementType::Int8));
    assert_eq!(error.to_string(), "no quant_bit has cache int8 with scale int8");
    for (bit, group) in [(QuantBit::Eight, 0), (QuantBit::Eight, 3), (QuantBit::Four, 1)] {
        let error = refused(builder().quantized(bit, group, ElementType::Float16));
        assert!(matches!(error, Error::QuantGroup { group: got, head_dim: 8 } if got == group), "{error}");
    }
    for num_layer in [usize::MAX >> 1, (usize::MAX >> 1) / (64 * 2 * 2 * 8)] {
        for layout in CacheLayout::ALL {
            let geometry = Geometry { num_layer, ..GEOMETRY };
            let error = refused(CacheSpec::builder(geometry).layout(layout).mode(Mode::Paged { page_size: 4 }));
            assert!(matches!(error, Error::SizeOverflow { tensor: "cache", .. }), "{error}");
        }
    }
}

#[test]
fn a_cache_whose_metadata_does_not_fit() {
    let huge = Geometry { num_layer: 1, num_heads: 1, head_dim: 1, max_t: 1 << 59 };
    let builder = CacheSpec::builder(huge).cache_type(ElementType::Int8).mode(Mode::Paged { page_size: 1 << 40 });
    let error = Manager::new(builder.build().unwrap()).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { len, size: 4 } if len == 1 << 59), "{error}");
    assert_eq!(error.kind(), "out_of_memory");
}

#[test]
fn tensors_of_another_cache() {
    let builder = || CacheSpec::builder(GEOMETRY).mode(Mode::Paged { page_size: 4 });
    let spec = builder().quantized(QuantBit::Eight, 8, ElementType::Float16).build().unwrap();
    let mut cache = Array5::<i8>::zeros(spec.cache_shape());
    let mut scale = Array5::<f16>::zeros(spec.scale_shape().unwrap());
    fn new(spec: &CacheSpec, cache: TensorMut<'_>, scale: Option<TensorMut<'_>>) -> Error {
        HostMemory::new(spec, cache, scale, &Serial).unwrap_err()
    }
    assert!(HostMemory::new(&spec, (&mut cache).into(), Some((&mut scale).into()), &Serial).is_ok());

    let mut floats = Array5::<f32>::zeros(spec.cache_shape());
    let error = new(&spec, (&mut floats).into(), Some((&mut scale).into()));
    assert_eq!((error.kind(), error.to_string().as_str()), ("tensor_type", "cache is of type float32, expected int8"));
    let error = new(&spec, (&mut cache).into(), Some((&mut floats).into()));
    assert_eq!(error.to_string(), "scale is of type float32, expected float16");
    let error = new(&spec, (&mut cache.slice_mut(s![1.., .., .., .., ..])).into(), Some((&mut scale).into()));
    assert_eq!(error.kind(), "tensor_shape");
    assert_eq!(error.to_string(), "cache has shape [63, 2, 2, 2, 8], expected [64, 2, 2, 2, 8]");
    let mut flat = ndarray::Array1::<f16>::zeros(512);
    let error = new(&spec, (&mut cache).into(), Some((&mut flat).into()));
    assert_eq!(error.to_string(), "scale has shape [512], expected [64, 2, 2, 2, 1]");
    let error = new(&spec, (&mut cache).into(), None);
    assert!(
        matches!(error, Error::ScaleMissing { expected: ElementType::Float16, shape: [64, 2, 2, 2, 1] }),
        "{error}"
    );
    assert_eq!(error.kind(), "scale_missing");

    let float = builder().cache_type(ElementType::Float32).build().unwrap();
    let error = new(&float, (&mut floats).into(), Some((&mut scale).into()));
    assert!(matches!(error, Error::ScaleUnexpected { got: ElementType::Float16, .. }), "{error}");
    assert_eq!(error.kind(), "scale_unexpected");
    // The same shape, in another order of memory.
    let mut reversed = floats.view_mut();
    reversed.invert_axis(Axis(0));
    let error = new(&float, (&mut reversed).into(), None);
    assert!(matches!(error, Error::Tensor(op::Error::NotContiguous { input: "cache", .. })), "{error}");
    assert_eq!(error.kind(), "not_contiguous");

    let int4 = builder().quantized(QuantBit::Four, 8, ElementType::Float16).build().unwrap();
    let mut packed = vec![0; 2048];
    let cache = TensorMut::int4(int4.cache_shape(), &mut packed[1..]);
    let error = new(&int4, cache, Some((&mut scale).into()));
    assert!(matches!(error, Error::Tensor(op::Error::PackedLength { got: 2047, expected: 2048, .. })), "{error}");
    assert!(
        HostMemory::new(&int4, TensorMut::int4(int4.cache_shape(), &mut packed), Some((&mut scale).into()), &Serial)
            .is_ok()
    );
}

#[test]
fn appends() {
    let mut manager = manager();
    let (a, b) = (manager.create(), manager.create());
    let error = refusal(&mut manager, &[Append::count(a, 1), Append::tokens(b, &[])]);
    assert!(matches!(error, Error::EmptyAppend { append: 1 }), "{error}");
    let error = refusal(&mut manager, &[Append::count(b, 1), Append::count(a, 1), Append::count(b, 2)]);
    assert!(matches!(error, Error::DuplicateSeq { append: 2, other: 0 }), "{error}");
    let error = refusal(&mut manager, &[Append::count(a, 1).at(-1)]);
    assert!(matches!(error, Error::PositionOrder { append: Some(0), got: -1, min: 0 }), "{error}");
    for (first, n) in [(MAX_POSITION, 2), (MAX_POSITION + 1, 1), (i64::MAX, 1), (0, usize::MAX), (0, 1 << 31)] {
        let error = refusal(&mut manager, &[Append::count(a, n).at(first)]);
        assert!(matches!(error, Error::PositionOverflow { append: Some(0), .. }), "{first} {n}: {error}");
    }
    let error = refusal(&mut manager, &[Append::count(a, 33)]);
    assert_eq!(error.to_string(), "append 0 makes 33 rows, which are 9 pages of 4, expected at most 8");
    let error = refusal(&mut manager, &[Append::count(SeqId::default(), 1)]);
    assert_eq!(error.kind(), "unknown_seq");
    assert!(error.to_string().ends_with(": it is the null id"), "{error}");
    let freed = manager.create();
    manager.free(freed).unwrap();
    let error = manager.free(freed).unwrap_err();
    assert!(error.to_string().ends_with(": it was freed"), "{error}");
    assert_eq!(manager.fork(SeqId::default()).unwrap_err().kind(), "unknown_seq");
    // The largest position is one of a row's.
    drop(manager.begin_step(&[Append::count(a, 1).at(MAX_POSITION)]).unwrap());
}

#[test]
fn steps_without_room() {
    let mut manager = manager();
    let seqs: Vec<_> = (0..3).map(|_| manager.create()).collect();
    let error = refusal(&mut manager, &seqs.iter().map(|&seq| Append::count(seq, 30)).collect::<Vec<_>>());
    assert!(matches!(error, Error::OutOfPages { need: 24, free: 16 }), "{error}");

    let wide = CacheSpec::builder(GEOMETRY).mode(Mode::Paged { page_size: 4 }).build().unwrap();
    let mut manager = Manager::new(wide).unwrap();
    let seqs: Vec<_> = (0..3).map(|_| manager.create()).collect();
    let huge = MAX_POSITION as usize + 1;
    let error = refusal(&mut manager, &seqs.iter().map(|&seq| Append::count(seq, huge)).collect::<Vec<_>>());
    assert!(matches!(error, Error::OutOfPages { need, free: 16 } if need == 3 * huge.div_ceil(4)), "{error}");
}

#[test]
fn a_step_whose_index_tensor_does_not_fit() {
    let wide = 1 << 28;
    let geometry = Geometry { num_layer: 1, num_heads: 1, head_dim: 1, max_t: wide };
    let builder = CacheSpec::builder(geometry).cache_type(ElementType::Int8).mode(Mode::Paged { page_size: 1 << 12 });
    let mut manager = Manager::new(builder.max_pages(wide).build().unwrap()).unwrap();
    let seqs: Vec<_> = (0..1 << 16).map(|_| manager.create()).collect();
    let appends: Vec<_> = seqs.iter().map(|&seq| Append::count(seq, 1)).collect();
    let error = manager.begin_step(&appends).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { len, size: 8 } if len == wide << 16), "{error}");
    assert_eq!((manager.stats().used, manager.stats().sequences), (0, 1 << 16));
    manager.check().unwrap();
    drop(manager.begin_step(&[]).unwrap());
}
