//! Session files of any bytes, but with the digest that they should have: what is loaded passes every check, what is
//! refused changes nothing.

use std::cell::RefCell;
use std::fs::File;
use std::io::{Seek, Write};
use std::path::PathBuf;

use kvcache_manager::schema::{CacheLayout, ElementType, QuantBit};
use kvcache_manager::{Append, CacheSpec, Geometry, KeyForm, Manager, Mode, Rope, RopeStyle};
use safetensors::SafeTensors;
use xxhash_rust::xxh3::xxh3_128;

use crate::manager::{Content, Slots, directory};
use crate::tally;

/// The cache that the kept session is of; key form and mode differ.
fn spec(mode: Mode, key_form: KeyForm) -> CacheSpec {
    let geometry = Geometry { num_layer: 2, num_heads: 1, head_dim: 4, max_t: 64 };
    let builder = CacheSpec::builder(geometry).quantized(QuantBit::Eight, 4, ElementType::Float16);
    let rope = Rope::with_frequencies(RopeStyle::Neox, vec![1.0, 0.1 + 0.2]);
    let builder = builder.layout(CacheLayout::HeadMajor).rope(rope).fingerprint("a \"model\" \\ ü");
    builder.mode(mode).key_form(key_form).build().expect("a legal specification")
}

/// Puts the digest of the bytes into its place, if there is one.
fn sign(bytes: &mut [u8]) {
    const KEY: &[u8] = b"\"digest\":\"";
    if let Some(start) = bytes.windows(KEY.len()).position(|window| window == KEY).map(|at| at + KEY.len())
        && let Some(place) = bytes.get_mut(start..start + 32)
    {
        place.fill(b'0');
        let digest = format!("{:032x}", xxh3_128(bytes));
        bytes[start..start + 32].copy_from_slice(digest.as_bytes());
    }
}

thread_local! {
    /// One file for all runs.
    static FILE: RefCell<(PathBuf, File)> = {
        let path = directory().join(format!("session_reader.{}", std::process::id()));
        let file = File::create(&path).expect("a file");
        RefCell::new((path, file))
    };
}

/// Replaces what is in the file.
fn write(bytes: &[u8]) -> PathBuf {
    FILE.with_borrow_mut(|(path, file)| {
        file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(bytes)).expect("a written file");
        path.clone()
    })
}

/// Runs the target on an input.
pub fn run(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    sign(&mut bytes);
    let path = write(&bytes);
    let raw = bytes.windows(16).any(|window| window == b"\"key_form\":\"raw\"");
    let key_form = if raw { KeyForm::Raw } else { KeyForm::Roped };
    for mode in [Mode::Paged { page_size: 2 }, Mode::Paged { page_size: 16 }, Mode::Runs, Mode::Cells] {
        let spec = spec(mode, key_form);
        let mut memory = Slots::new(&spec);
        let mut manager = Manager::new(spec).expect("a small manager");
        // Something that is there already.
        let live = manager.create();
        let step = manager.begin_step(&[Append::tokens(live, &[11, 12, 13])]).expect("room").apply(&mut memory);
        step.expect("an applied step").commit();
        let before = manager.clone();
        let slots: Vec<usize> = manager.slots(live).expect("a live sequence").collect();
        let contents = slots.iter().map(|&slot| Content { tag: slot as u32, rotated: 3 });
        slots.iter().zip(contents).for_each(|(&slot, content)| memory.contents[slot] = content);
        for index in [0, 2] {
            match manager.load_seq(&path, &mut memory, index) {
                Ok(seq) => {
                    manager.check().expect("a manager whose invariants hold");
                    manager.free(seq).expect("a sequence that was loaded");
                }
                Err(_) => assert!(manager == before || index > 0),
            }
            // What is live stays where it is, and what it is.
            let is_kept = |&slot: &usize| memory.contents[slot] == Content { tag: slot as u32, rotated: 3 };
            assert!(
                manager.slots(live).expect("a live sequence").eq(slots.iter().copied()) && slots.iter().all(is_kept)
            );
        }
        manager.free(live).expect("a live sequence");
        let loaded = manager.load(&path, &mut memory);
        tally::count(loaded.is_ok());
        if let Ok(seqs) = loaded {
            SafeTensors::deserialize(&bytes).expect("a file of safetensors, without other bytes");
            manager.check().expect("a manager whose invariants hold");
            for &seq in &seqs {
                if let Ok(planned) = manager.begin_step(&[Append::tokens(seq, &[1, 2, 3])]) {
                    planned.apply(&mut memory).expect("an applied step").commit();
                }
            }
            manager.check().expect("a manager whose invariants hold");
        }
    }
}
