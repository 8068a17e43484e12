//! Masks of lengths and positions at their ends. Which keys are visible is compared in the scripts of `tests`, element
//! by element.

use std::iter::{Once, once};

use super::*;
use crate::mask_spec::MaskSpec;

#[test]
fn a_mask_of_another_length_is_refused() {
    let spec = MaskSpec::causal();
    let fill = |len: usize, shape| {
        let mut mask = vec![7.0_f32; len];
        let blocks = std::iter::empty::<MaskBlock<Once<_>, Once<_>>>();
        let result = fill(&mut mask, shape, spec.slopes(), spec.visibility(None, 0), blocks);
        assert!(result.is_ok() || mask.iter().all(|&value| value == 7.0));
        result
    };
    for got in [5, 7] {
        let refused = fill(got, [1, 2, 3]);
        let Err(error) = refused else { panic!("a mask of {got} elements was filled") };
        assert_eq!(error.kind(), "mask_length");
        assert_eq!(error.to_string(), format!("the mask has {got} elements, expected 6 for [1, 2, 3]"));
    }
    let refused = fill(0, [1, usize::MAX, 3]);
    assert!(matches!(refused, Err(Error::MaskLength { expected: usize::MAX, got: 0, .. })));
    for shape in [[1, 0, 0], [0, 2, 3], [1, 0, 3], [1, 2, 0]] {
        assert!(fill(0, shape).is_ok());
    }
}

#[test]
fn distances_at_the_largest_position() {
    let slopes = [0.5_f32, 1e-5];
    let spec = MaskSpec::causal().alibi(&slopes);
    let last = crate::positions::MAX_POSITION;
    let key_positions = [(0, 1), (last, 1)].into_iter();
    let block = MaskBlock { n: 1, position: last, key_positions, key_columns: once((0, 2)) };
    let (mut wide, mut narrow) = ([7.0_f32; 4], [f16::ONE; 4]);
    let all = [spec.visibility(Some(usize::MAX), 0), spec.visibility(None, usize::MAX)];
    fill(&mut wide, [2, 1, 2], spec.slopes(), all[0], [block.clone()]).unwrap();
    fill(&mut narrow, [2, 1, 2], spec.slopes(), all[1], [block]).unwrap();
    let far = -(last as f32);
    assert_eq!(wide.map(f32::to_bits), [far * 0.5, 0.0, far * 1e-5, 0.0].map(f32::to_bits));
    assert_eq!(narrow, wide.map(f16::from_f32));
}
