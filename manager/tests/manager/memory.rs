//! A cache in memory of this process, as a manager sees it.

use kvcache_conformance::Tensor;
use kvcache_manager::op::Serial;
use kvcache_manager::schema::ElementType;
use kvcache_manager::{CacheMemory, CacheSpec, Geometry, HostMemory, Mode, Rope, Rotation, RowCopy};
use proptest::prelude::*;

use kvcache_testing::manager::memory::tensor;
use kvcache_testing::manager::types::{TYPES, layouts, with_types};

const GEOMETRY: Geometry = Geometry { num_layer: 2, num_heads: 2, head_dim: 8, max_t: 12 };

/// The tensors of a cache.
#[derive(Debug, Clone, PartialEq)]
struct Tensors {
    cache: Tensor,
    scale: Option<Tensor>,
}

impl Tensors {
    /// Bytes that are numbers of common size in each type.
    fn filled(spec: &CacheSpec, types: usize) -> Self {
        let (_, _, scale_type, cache_type) = TYPES[types];
        let made = |element: ElementType, shape: [usize; 5]| {
            let mut tensor = Tensor::zeros(element, shape.to_vec()).unwrap();
            tensor.bytes_mut().iter_mut().enumerate().for_each(|(i, byte)| *byte = (i * 37 % 61) as u8);
            tensor
        };
        let scale = scale_type.map(|t3| made(t3, spec.scale_shape().unwrap()));
        Self { cache: made(cache_type, spec.cache_shape()), scale }
    }

    fn bytes_mut(&mut self) -> (&mut [u8], &mut [u8]) {
        (self.cache.bytes_mut(), self.scale.as_mut().map_or(&mut [][..], Tensor::bytes_mut))
    }
}

proptest! {
    /// Every method does to the tensors' bytes what the rows' own does.
    #[test]
    fn a_host_memory_moves_the_rows_of_its_tensors(layout in layouts(), types in 0..TYPES.len()) {
        let builder = with_types(CacheSpec::builder(GEOMETRY).layout(layout), types);
        let spec = builder.mode(Mode::Paged { page_size: 4 }).build().unwrap();
        let mut tensors = Tensors::filled(&spec, types);
        let mut expected = tensors.clone();

        let copies = [RowCopy { src: 0, dst: 2, len: 4 }, RowCopy { src: 5, dst: 11, len: 1 }];
        let rope = Rope::neox(6, 1e4);
        let rotations = [Rotation { slot: 7, len: 2, delta: -3 }, Rotation { slot: 1, len: 1, delta: 40 }];
        let (cache, scale) = expected.bytes_mut();
        spec.rows().copy(cache, scale, &copies, &Serial).unwrap();
        let rotated = spec.rows().rotate_keys(cache, scale, &rotations, &rope, &Serial);
        let mut rows = vec![0; 2 * spec.bytes_per_token()];
        spec.rows().read(cache, scale, &[8, 1], &mut rows).unwrap();
        spec.rows().write(cache, scale, &[3, 10], &rows).unwrap();

        let scale = tensors.scale.as_mut().map(tensor);
        let mut host = HostMemory::new(&spec, tensor(&mut tensors.cache), scale, &Serial).unwrap();
        host.copy_rows(&copies).unwrap();
        let plain_int8 = TYPES[types].3 == ElementType::Int8 && TYPES[types].2.is_none();
        match host.rotate_keys(&rotations, &rope) {
            Ok(()) => prop_assert!(!plain_int8 && rotated.is_ok()),
            Err(error) => {
                prop_assert!(plain_int8);
                prop_assert_eq!(error.to_string(), "keys of type int8 without scales cannot be rotated");
            }
        }
        let mut got = vec![0; rows.len()];
        host.read_rows(&[8, 1], &mut got).unwrap();
        prop_assert_eq!(&got, &rows);
        host.write_rows(&[3, 10], &got).unwrap();
        let outside = [RowCopy { src: 0, dst: 9, len: 4 }];
        prop_assert!(host.copy_rows(&outside).is_err());
        prop_assert!(host.read_rows(&[12], &mut got).is_err());

        let (cache, scale) = host.tensors();
        prop_assert_eq!((cache.element(), &**cache.shape()), (TYPES[types].3, &spec.cache_shape()[..]));
        prop_assert_eq!(scale.map(|scale| scale.element()), TYPES[types].2);
        prop_assert_eq!(tensors, expected);
    }
}
