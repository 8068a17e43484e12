//! Operators that are made, called, refused and dropped thousands of times keep no memory.

use kvcache_op::{
    AttentionAttributes, Attributes, CacheAttentionAttributes, CacheAttentionInputs, IndexInputs, Inputs,
    KeyValueCache, MultiHeadCacheAttention, Rayon,
};
use kvcache_testing::live_bytes::{Counting, live_bytes};
use ndarray::{Array3, Array5};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A call of one token after `past`, which is legal where `start_pos` is the same.
fn inputs<'a>(current: &'a Array3<f32>, kvlen: &'a [i64; 2], start_pos: &'a [i64; 1]) -> Inputs<'a> {
    Inputs {
        current_key: current.into(),
        current_value: current.into(),
        indices: IndexInputs {
            seqstarts: (&[0, 1]).into(),
            kvstarts: kvlen.into(),
            cachestarts: (&[0]).into(),
            start_pos: start_pos.into(),
            max_seqlen: (&1).into(),
            max_kvlen: (&kvlen[1]).into(),
        },
    }
}

/// Both operators in one legal call and one that is refused, and attributes that are refused, so many times.
fn calls(times: usize) {
    let mut cache = Array5::<f32>::zeros((64, 2, 2, 2, 8));
    let (current, query) = (Array3::<f32>::ones((1, 2, 8)), Array3::<f32>::ones((1, 4, 8)));
    for i in 0..times {
        let past = i as i64 % 60;
        let (kvlen, start_pos) = ([0, past + 1], [past]);
        let attributes = Attributes { num_layer: 2, layer_idx: i as i64 % 2, ..Attributes::default() };
        let legal = inputs(&current, &kvlen, &start_pos);
        let illegal = inputs(&current, &kvlen, &[-1]);

        let op = KeyValueCache::new(attributes.clone()).unwrap();
        let (key, _) = op.run_alloc::<f32>(&legal, (&mut cache).into(), None, &Rayon).unwrap();
        assert_eq!(key[[past as usize, 1, 7]], 1.0);
        assert!(op.run_alloc::<f32>(&illegal, (&mut cache).into(), None, &Rayon).is_err());
        assert!(KeyValueCache::new(Attributes { cache_mode: 2, ..Attributes::default() }).is_err());

        let attention = AttentionAttributes { num_heads: 4, head_dim: 8, num_kv_heads: 2, ..Default::default() };
        let op = MultiHeadCacheAttention::new(CacheAttentionAttributes { attention, cache: attributes }).unwrap();
        let attend = |stored: Inputs<'_>, cache: &mut Array5<f32>| {
            let inputs =
                CacheAttentionInputs { query: (&query).into(), stored, decoding_batches: (&1).into(), attn_mask: None };
            op.check(&inputs, cache.into(), None)?.run_alloc::<f32>(&Rayon)
        };
        assert!(attend(legal, &mut cache).is_ok());
        assert!(attend(illegal, &mut cache).is_err());
    }
}

/// One test, since it counts what the whole process has.
#[test]
fn nothing_is_kept() {
    calls(100); // what is made once: rayon's threads, what threads keep from call to call
    let before = live_bytes();
    calls(4000);
    let kept = live_bytes() - before;
    assert!(kept.abs() < 4096, "{kept} bytes are kept after 4000 rounds");
}
