//! The operators linked into a Rust program, which registers them in a session of the `ort` crate. The models are those
//! that `models.py` makes. (Tests in Python register the library by its path, and run every golden case.)

mod runtime;

use std::path::Path;

use ort::session::{Session, SessionInputValue};
use ort::value::Tensor;

fn session(model: &str) -> ort::Result<Session> {
    runtime::session(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/session/models").join(model))
}

#[test]
fn a_step_writes_the_callers_cache() -> ort::Result<()> {
    const ROW: usize = 4; // 2 heads of 2 elements
    let mut session = session("decode.onnx")?;
    // One new token behind the one in slot 1; slots (MaxT, L, 2, H, Dh).
    let before: Vec<f32> = (0..3 * 2 * ROW as u16).map(f32::from).collect();
    let mut cache = Tensor::from_array(([3, 1, 2, 2, 2], before.clone()))?;
    let mut inputs: Vec<(&str, SessionInputValue<'_>)> = vec![
        ("current_key", Tensor::from_array(([1, 2, 2], vec![-1f32; ROW]))?.into()),
        ("current_value", Tensor::from_array(([1, 2, 2], vec![-2f32; ROW]))?.into()),
        ("cache", cache.view_mut().into_dyn().into()),
    ];
    let indices: [(&str, &[i64]); 6] = [
        ("seqstarts", &[0, 1]),
        ("kvstarts", &[0, 2]),
        ("cachestarts", &[1]),
        ("start_pos", &[1]),
        ("max_seqlen", &[1]),
        ("max_kvlen", &[2]),
    ];
    for (name, numbers) in indices {
        inputs.push((name, Tensor::from_array(([numbers.len()], numbers.to_vec()))?.into()));
    }
    let outputs = session.run(inputs)?;
    let stored = &before[2 * ROW..4 * ROW];
    for (name, stored, current) in [("key", &stored[..ROW], -1.0), ("value", &stored[ROW..], -2.0)] {
        let (shape, rows) = outputs[name].try_extract_tensor::<f32>()?;
        assert_eq!(**shape, [2, 2, 2], "{name}");
        assert_eq!(rows, [stored, &[current; ROW]].concat(), "{name}");
    }
    drop(outputs);
    let (_, after) = cache.extract_tensor();
    assert_eq!(after[..4 * ROW], before[..4 * ROW]);
    assert_eq!(after[4 * ROW..], [[-1.0; ROW], [-2.0; ROW]].concat());
    Ok(())
}

#[test]
fn a_node_that_cannot_work_is_refused_at_load() {
    let message = session("refused.onnx").map(drop).unwrap_err().to_string();
    assert!(message.contains("node 'cached'") && message.contains("page_size is 0"), "{message}");
}
