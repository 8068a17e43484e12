//! Answers to many prompts at once, in Rust: a model that `kvcache_ops.models.build` has made, in ONNX Runtime.
//!
//! `kvcache_ops.engine` is this loop in Python, with all that a server needs.

mod engine;
mod model;

use std::path::PathBuf;
use std::time::Instant;

use clap::Parser;

use crate::engine::Engine;
use crate::model::Model;

/// Continues every prompt with the likeliest tokens.
#[derive(Parser)]
struct Arguments {
    /// The folder that `kvcache_ops.models.build` has written.
    model: PathBuf,
    /// The prompts.
    #[arg(required = true)]
    prompts: Vec<String>,
    /// Tokens of an answer.
    #[arg(long, default_value_t = 32)]
    max_new_tokens: usize,
    /// Slots of the cache, for all sequences together.
    #[arg(long, default_value_t = 4096)]
    max_tokens: usize,
    /// New tokens of a step.
    #[arg(long, default_value_t = 512)]
    token_budget: usize,
    /// The shared library of ONNX Runtime.
    #[arg(long, env = "ORT_DYLIB_PATH", default_value = "libonnxruntime.so")]
    onnxruntime: PathBuf,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let session = model::session(&arguments.onnxruntime, &arguments.model.join("model.onnx"))?;
    let model = Model::new(session, &arguments.model)?;
    let mut engine = Engine::new(model, arguments.max_tokens, arguments.token_budget)?;
    for prompt in &arguments.prompts {
        engine.submit(prompt, arguments.max_new_tokens)?;
    }
    let (mut tokens, begun) = (0, Instant::now());
    while !engine.is_idle() {
        for answer in engine.step()? {
            tokens += answer.tokens.len();
            println!("{}\x1b[1m{}\x1b[0m\n", arguments.prompts[answer.request], answer.text);
        }
    }
    println!("{tokens} tokens, {:.0} a second", tokens as f64 / begun.elapsed().as_secs_f64());
    Ok(())
}
