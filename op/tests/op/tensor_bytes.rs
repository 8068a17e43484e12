//! The bytes of borrowed tensors.

use kvcache_op::{ElementType, Error, Shape, TensorMut};
use ndarray::{Array2, Array3, s};

#[test]
fn bytes_are_those_of_the_array() {
    let mut array = Array2::from_shape_fn((2, 3), |(i, j)| (3 * i + j) as f32);
    let expected: Vec<u8> = array.iter().flat_map(|x| x.to_ne_bytes()).collect();
    let mut tensor = TensorMut::from(&mut array);
    assert_eq!((tensor.element(), tensor.shape()), (ElementType::Float32, &Shape::from([2, 3])));
    assert_eq!(tensor.bytes("cache").unwrap(), expected);
    tensor.reborrow().bytes_mut("cache").unwrap()[20..].copy_from_slice(&7.5f32.to_ne_bytes());
    assert_eq!(tensor.bytes("cache").unwrap()[..20], expected[..20]);
    assert_eq!(array, ndarray::array![[0.0, 1.0, 2.0], [3.0, 4.0, 7.5]]);
}

#[test]
fn two_elements_of_int4_are_a_byte() {
    let mut packed = [1, 2, 3];
    let mut tensor = TensorMut::int4([3, 2], &mut packed);
    assert_eq!(tensor.bytes("cache").unwrap(), [1, 2, 3]);
    tensor.bytes_mut("cache").unwrap()[1] = 9;
    assert_eq!(packed, [1, 9, 3]);
    let mut short = TensorMut::int4([4, 2], &mut packed);
    let error = short.bytes_mut("cache").unwrap_err();
    assert_eq!(error, Error::PackedLength { input: "cache", shape: [4, 2].into(), got: 3, expected: 4 });
}

#[test]
fn tensors_without_a_slice_of_bytes_are_refused() {
    let mut array = Array3::<f32>::zeros((4, 3, 2));
    let mut gaps = array.slice_mut(s![.., ..2, ..]);
    let error = TensorMut::from(&mut gaps).bytes("scale").unwrap_err();
    assert_eq!(error, Error::NotContiguous { input: "scale", shape: [4, 2, 2].into() });
    // SAFETY: one element of the array's bytes, from the second byte on; nothing else uses the array.
    let mut odd =
        unsafe { TensorMut::from_raw_parts(ElementType::Float32, [1], array.as_mut_ptr().cast::<u8>().add(1)) };
    assert!(matches!(odd.bytes_mut("cache"), Err(Error::Misaligned { input: "cache", expected: 4, .. })));
    // SAFETY: no call and no slice reaches memory of a size that does not exist.
    let huge = unsafe { TensorMut::from_raw_parts(ElementType::Float32, [1 << 62, 2], std::ptr::null_mut()) };
    assert!(matches!(huge.bytes("cache"), Err(Error::SizeOverflow { input: "cache", .. })));
    // SAFETY: without elements any address will do.
    let empty = unsafe { TensorMut::from_raw_parts(ElementType::Float32, [0, 2], std::ptr::null_mut()) };
    assert_eq!(empty.bytes("cache"), Ok(&[][..]));
}
