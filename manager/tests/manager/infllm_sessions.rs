//! Saved sequences of InfLLM: where they go on, and files of another configuration. Files that are not whole are
//! refused by what reads them, as those of sessions: `session_refusals` has every byte.

use std::sync::Arc;

use kvcache_manager::schema::ElementType;
use kvcache_manager::{
    BlockScore, CacheSpec, Error, FarPositions, Geometry, InfLlm, InfLlmConfig, KeyForm, Mode, Rope, SeqId,
};
use kvcache_testing::manager::memory::Memory;
use ndarray::Array3;
use tempfile::NamedTempFile;

use crate::block_map::BlockMap;

fn config() -> InfLlmConfig {
    let positions = FarPositions::FarFixed { n_ctx: 16 };
    InfLlmConfig { score: BlockScore::PageBounds, positions, ..InfLlmConfig::new(2, 4, 2, 2) }
}

fn infllm(max_t: usize, config: InfLlmConfig) -> (InfLlm, Memory, Arc<BlockMap>) {
    let geometry = Geometry { num_layer: 1, num_heads: 1, head_dim: 4, max_t };
    let builder = CacheSpec::builder(geometry).mode(Mode::Paged { page_size: 2 }).cache_type(ElementType::Float32);
    let spec = builder.key_form(KeyForm::Raw).rope(Rope::neox(4, 100.0)).build().unwrap();
    let store = Arc::new(BlockMap::default());
    (InfLlm::new(spec.clone(), config, store.clone()).unwrap(), Memory::new(&spec), store)
}

/// A sequence of forty tokens, whose positions were moved back.
fn saved() -> Result<(NamedTempFile, Vec<u32>), Error> {
    let (mut infllm, mut memory, _) = infllm(64, config());
    let seq = infllm.create(None)?;
    for _ in 0..20 {
        infllm.begin_step(&[(seq, 2)], &mut memory)?.commit(&memory)?;
        infllm.select(0, Array3::ones((2, 1, 4)).view())?;
    }
    let file = NamedTempFile::new().unwrap();
    infllm.save_seq(file.path(), &memory, seq)?;
    Ok((file, infllm.blocks(seq, 0)?))
}

#[test]
fn a_sequence_goes_on_where_it_was_saved() -> Result<(), Error> {
    let (file, blocks) = saved()?;
    let (mut infllm, mut memory, store) = infllm(32, config());
    let seq = infllm.load_seq(file.path(), &mut memory, Some(SeqId::default()))?;
    infllm.check()?;
    assert_eq!((infllm.seq_len(seq)?, infllm.blocks(seq, 0)?), (40, blocks));
    assert_eq!(store.len(), infllm.partition(seq)?.blocks);
    let step = infllm.begin_step(&[(seq, 1)], &mut memory)?;
    assert!(step.positions()[0] < 16 && step.loads() == 2);
    drop(step);
    assert_eq!(infllm.load_seq(file.path(), &mut memory, Some(seq)).unwrap_err().kind(), "known_seq");
    // At last there is no room, and nothing is stored of what finds none.
    let (stored, refused) = loop {
        let stored = store.len();
        if let Err(refused) = infllm.load_seq(file.path(), &mut memory, None) {
            break (stored, refused);
        }
    };
    assert_eq!((refused.kind(), store.len()), ("out_of_pages", stored));
    infllm.check()
}

#[test]
fn files_of_another_configuration_are_refused() -> Result<(), Error> {
    let (file, _) = saved()?;
    let other = FarPositions::FarFixed { n_ctx: 18 };
    for other in [
        InfLlmConfig { positions: other, ..config() },
        InfLlmConfig { local: 6, positions: other, ..config() },
        InfLlmConfig { score: BlockScore::Representatives, repr_topk: 2, ..config() },
        InfLlmConfig { per_layer: true, ..config() },
    ] {
        let (mut infllm, mut memory, _) = infllm(64, other);
        assert_eq!(infllm.load_seq(file.path(), &mut memory, None).unwrap_err().kind(), "metadata");
    }
    // What was selected among more, or fewer, is forgotten.
    let (mut infllm, mut memory, _) = infllm(64, InfLlmConfig { topk: 3, max_cached: 3, ..config() });
    let seq = infllm.load_seq(file.path(), &mut memory, None)?;
    assert_eq!(infllm.blocks(seq, 0).unwrap_err().kind(), "not_selected");
    Ok(())
}
