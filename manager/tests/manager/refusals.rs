//! Every error, with its numbers. What a refused operation leaves behind is the state machine's matter.

use half::f16;
use kvcache_manager::op::{Serial, TensorMut};
use kvcache_manager::schema::{CacheLayout, ElementType};
use kvcache_manager::{
    Append, CacheSettings, CacheSpec, Error, Geometry, HostMemory, MAX_POSITION, Manager, Mode, SeqId,
};
use ndarray::{Array1, Array5, Axis, s};

const GEOMETRY: Geometry = Geometry { num_layer: 2, num_heads: 2, head_dim: 8, max_t: 64 };

/// A cache of pages of so many slots.
fn paged(geometry: Geometry, page_size: usize) -> CacheSettings {
    CacheSettings { geometry, mode: Mode::Paged { page_size }, ..CacheSettings::default() }
}

fn settings() -> CacheSettings {
    paged(GEOMETRY, 4)
}

fn manager() -> Manager {
    Manager::new(CacheSettings { max_pages: Some(8), ..settings() }.check().unwrap()).unwrap()
}

/// The refusal of a step, which changes nothing.
fn refusal(manager: &mut Manager, appends: &[Append<'_>]) -> Error {
    let before = manager.clone();
    let error = manager.begin_step(appends).unwrap_err();
    assert!(*manager == before);
    error
}

#[test]
fn specifications() {
    use ElementType::{Float16, Int4, Int8, Int64};
    let many = Geometry { max_t: u32::MAX as usize, num_layer: 1, num_heads: 1, head_dim: 1 };
    let most = usize::MAX >> 1;
    let refuses = |settings: CacheSettings, message: &str| {
        assert_eq!(settings.check().unwrap_err().to_string(), message);
    };
    for (name, geometry) in [
        ("num_layer", Geometry { num_layer: 0, ..GEOMETRY }),
        ("num_heads", Geometry { num_heads: 0, ..GEOMETRY }),
        ("head_dim", Geometry { head_dim: 0, ..GEOMETRY }),
        ("max_t", Geometry { max_t: 0, ..GEOMETRY }),
    ] {
        refuses(paged(geometry, 1), &format!("{name} is 0, expected 1 to {most}"));
    }
    refuses(paged(many, 1), "max_t / page_size is 4294967295, expected 1 to 4294967294");
    refuses(paged(GEOMETRY, 0), "page_size is 0, expected 1 to 64");
    refuses(paged(GEOMETRY, 65), "page_size is 65, expected 1 to 64");
    refuses(CacheSettings { max_pages: Some(0), ..settings() }, "max_pages is 0, expected 1 to 64");
    refuses(CacheSettings { quant_rotation: true, ..settings() }, "quant_rotation is 1, expected 0 to 0");
    let pages = settings().mode;
    for (mode, window, sink, max_t) in
        [(pages, None, 0, 8), (pages, Some(4), 1, 8), (Mode::Runs, Some(4), 0, 8), (pages, Some(4), 0, 7)]
    {
        let geometry = Geometry { max_t, ..GEOMETRY };
        let kept = CacheSettings { geometry, mode, window, sink, keep_rows: true, ..settings() };
        assert_eq!(kept.check().unwrap_err().kind(), "spec_range");
    }
    let of_types = |cache_type, quant| CacheSettings { cache_type, quant, ..settings() };
    refuses(of_types(Int4, None), "no quant_bit has cache int4 with scale none");
    refuses(of_types(Int64, None), "no quant_bit has cache int64 with scale none");
    refuses(of_types(Int8, Some((8, Int8))), "no quant_bit has cache int8 with scale int8");
    for (cache_type, group) in [(Int8, 0), (Int8, 3), (Int4, 1)] {
        let message = format!("quant_group is {group}, expected a divisor of head_dim 8, even for int4");
        refuses(of_types(cache_type, Some((group, Float16))), &message);
    }
    for num_layer in [most, most / (64 * 2 * 2 * 8)] {
        for layout in CacheLayout::ALL {
            let error = CacheSettings { layout, ..paged(Geometry { num_layer, ..GEOMETRY }, 4) }.check().unwrap_err();
            assert!(matches!(error, Error::SizeOverflow { tensor: "cache", .. }), "{error}");
        }
    }
}

#[test]
fn a_cache_whose_metadata_does_not_fit() {
    let huge = Geometry { num_layer: 1, num_heads: 1, head_dim: 1, max_t: 1 << 59 };
    let error = Manager::new(CacheSettings { cache_type: ElementType::Int8, ..paged(huge, 1 << 40) }.check().unwrap())
        .unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string()),
        ("out_of_memory", format!("no memory for {} numbers of 4 bytes", 1u64 << 59))
    );
}

#[test]
fn tensors_of_another_cache() {
    let spec = CacheSettings { cache_type: ElementType::Int8, quant: Some((8, ElementType::Float16)), ..settings() }
        .check()
        .unwrap();
    let float = CacheSettings { cache_type: ElementType::Float32, ..settings() }.check().unwrap();
    let (mut cache, mut floats) = (Array5::<i8>::zeros(spec.cache_shape()), Array5::<f32>::zeros(spec.cache_shape()));
    let (mut scale, mut flat) = (Array5::<f16>::zeros(spec.scale_shape().unwrap()), Array1::<f16>::zeros(512));
    fn refused(spec: &CacheSpec, cache: TensorMut<'_>, scale: Option<TensorMut<'_>>, kind: &str, message: &str) {
        let error = HostMemory::new(spec, cache, scale, &Serial).unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), (kind, message));
    }
    let (other_type, other_shape) = ("tensor_type", "tensor_shape");
    let message = "cache is of type float32, expected int8";
    refused(&spec, (&mut floats).into(), Some((&mut scale).into()), other_type, message);
    let message = "scale is of type float32, expected float16";
    refused(&spec, (&mut cache).into(), Some((&mut floats).into()), other_type, message);
    let message = "cache has shape [63, 2, 2, 2, 8], expected [64, 2, 2, 2, 8]";
    let mut fewer = cache.slice_mut(s![1.., .., .., .., ..]);
    refused(&spec, (&mut fewer).into(), Some((&mut scale).into()), other_shape, message);
    let message = "scale has shape [512], expected [64, 2, 2, 2, 1]";
    refused(&spec, (&mut cache).into(), Some((&mut flat).into()), other_shape, message);
    let message = "scale is absent, expected a tensor of float16 with shape [64, 2, 2, 2, 1]";
    refused(&spec, (&mut cache).into(), None, "scale_missing", message);
    let message = "scale is given (float16, shape [64, 2, 2, 2, 1]), expected none: the cache has no scales by slot";
    refused(&float, (&mut floats).into(), Some((&mut scale).into()), "scale_unexpected", message);
    // The same shape, in another order of memory.
    let mut reversed = floats.view_mut();
    reversed.invert_axis(Axis(0));
    let error = HostMemory::new(&float, (&mut reversed).into(), None, &Serial).unwrap_err();
    assert!(error.kind() == "not_contiguous" && error.to_string().starts_with("cache "), "{error}");

    assert!(HostMemory::new(&spec, (&mut cache).into(), Some((&mut scale).into()), &Serial).is_ok());
}

#[test]
fn appends() {
    let mut manager = manager();
    let (a, b, freed) = (manager.create(), manager.create(), manager.create());
    manager.free(freed).unwrap();
    let count = Append::count;
    for (appends, message) in [
        (vec![count(a, 1), Append::tokens(b, &[])], "append 1 has no tokens"),
        (vec![count(b, 1), count(a, 1), count(b, 2)], "append 2 is to the same sequence as append 0"),
        (vec![count(a, 1).at(-1)], "append 0: position -1 would follow -1, expected 0 or a later one"),
        (vec![count(a, 33)], "append 0 makes 33 rows, which are 9 pages of 4, expected at most 8"),
    ] {
        assert_eq!(refusal(&mut manager, &appends).to_string(), message);
    }
    for (first, n) in [(MAX_POSITION, 2), (MAX_POSITION + 1, 1), (i64::MAX, 1), (0, usize::MAX), (0, 1 << 31)] {
        let message = format!("append 0: {n} positions from {first}, expected none above {MAX_POSITION}");
        assert_eq!(refusal(&mut manager, &[count(a, n).at(first)]).to_string(), message);
    }
    for (seq, why) in [(SeqId::default(), "it is the null id"), (freed, "it was freed")] {
        let errors =
            [refusal(&mut manager, &[count(seq, 1)]), manager.free(seq).unwrap_err(), manager.fork(seq).unwrap_err()];
        for error in errors {
            assert_eq!(
                (error.kind(), error.to_string()),
                ("unknown_seq", format!("no sequence has the id {seq}: {why}"))
            );
        }
    }
    // The largest position is one of a row's.
    drop(manager.begin_step(&[count(a, 1).at(MAX_POSITION)]).unwrap());
}

#[test]
fn steps_without_room() {
    let huge = MAX_POSITION as usize + 1;
    let wide = Manager::new(settings().check().unwrap()).unwrap();
    for (mut manager, n, need) in [(manager(), 30, 24), (wide, huge, 3 * huge.div_ceil(4))] {
        let seqs = [(); 3].map(|()| manager.create());
        let error = refusal(&mut manager, &seqs.map(|seq| Append::count(seq, n)));
        assert_eq!(error.to_string(), format!("{need} pages are needed, 16 are free"));
    }
}

#[test]
fn a_step_whose_index_tensor_does_not_fit() {
    let wide = 1 << 28;
    let geometry = Geometry { num_layer: 1, num_heads: 1, head_dim: 1, max_t: wide };
    let settings = CacheSettings { cache_type: ElementType::Int8, ..paged(geometry, 1 << 12) };
    let mut manager = Manager::new(CacheSettings { max_pages: Some(wide), ..settings }.check().unwrap()).unwrap();
    let seqs: Vec<_> = (0..1 << 16).map(|_| manager.create()).collect();
    let appends: Vec<_> = seqs.iter().map(|&seq| Append::count(seq, 1)).collect();
    let error = manager.begin_step(&appends).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { len, size: 8 } if len == wide << 16), "{error}");
    assert_eq!((manager.stats().used, manager.stats().sequences), (0, 1 << 16));
    manager.check().unwrap();
    drop(manager.begin_step(&[]).unwrap());
}
