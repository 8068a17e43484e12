//! Sequences move between the host and a device.

use std::sync::Arc;

use kvcache_conformance::random::Unstructured;
use kvcache_manager::schema::ElementType::{Float16, Int4};
use kvcache_manager::schema::{CacheLayout, QuantBit};
use kvcache_manager::{Append, CacheMemory, Error, Geometry, Manager, SeqId};
use kvcache_testing::manager::memory::Memory;
use kvcache_testing::manager::store::Store;
use libtest_mimic::Failed;

use crate::device::{Twins, spec};

/// A new sequence of 13 tokens; the rows are what the memory has in its slots.
fn append(manager: &mut Manager, memory: &mut dyn CacheMemory, first: u32) -> Result<SeqId, Error> {
    let seq = manager.create();
    let tokens: Vec<u32> = (first..first + 13).collect();
    manager.begin_step(&[Append::tokens(seq, &tokens)])?.apply(memory)?.commit();
    Ok(seq)
}

fn rows(manager: &Manager, seq: SeqId, memory: &dyn CacheMemory) -> Result<Vec<u8>, Failed> {
    let slots: Vec<usize> = manager.slots(seq)?.collect();
    let mut rows = vec![0; slots.len() * manager.spec().bytes_per_token()];
    memory.read_rows(&slots, &mut rows).map_err(|error| error.to_string())?;
    Ok(rows)
}

pub fn cross_between_host_and_device() -> Result<(), Failed> {
    let mut entropy = Unstructured::seed(26);
    let geometry = Geometry { num_layer: 2, num_heads: 2, head_dim: 16, max_t: 32 };
    let types = (Int4, Some((QuantBit::Four, 8, Float16)));
    let of_device = spec(CacheLayout::HeadMajor, types, geometry)?;
    let mut twins = Twins::new(&of_device, 3, &mut entropy)?;
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name);

    let mut manager = Manager::with_store(of_device, Arc::new(Store::new(false, 1)))?;
    let seq = twins.on_device(|memory| append(&mut manager, memory, 0))??;
    let expected = rows(&manager, seq, &twins.host)?;
    twins.on_device(|memory| manager.save(path("device"), memory))??;

    // To a cache of the host in another layout, and back.
    let mut other = Manager::new(spec(CacheLayout::TokenMajor, types, geometry)?)?;
    let mut host = Memory::new(other.spec());
    let loaded = other.load(path("device"), &mut host)?[0];
    assert!(rows(&other, loaded, &host)? == expected, "the host has loaded other rows");
    other.save(path("host"), &host)?;
    let back = twins.on_device(|memory| manager.load_seq(path("host"), memory, 0))??;
    assert!(twins.on_device(|memory| rows(&manager, back, memory))?? == expected, "the device has loaded other rows");

    // Out to a store, its slots overwritten, and in.
    manager.free(back)?;
    let swapped = twins.on_device(|memory| {
        manager.swap_out(seq)?;
        manager.update(memory)?;
        // Two others take every page.
        let others = [append(&mut manager, memory, 100)?, append(&mut manager, memory, 200)?];
        let zeros = vec![0; manager.spec().rows().row_len() * 32];
        memory.write_rows(&(0..32).collect::<Vec<_>>(), &zeros).map_err(|source| Error::Memory { source })?;
        others.into_iter().try_for_each(|other| manager.free(other))?;
        manager.swap_in(seq, memory)
    })??;
    assert_eq!(swapped, 13);
    assert!(twins.on_device(|memory| rows(&manager, seq, memory))?? == expected, "other rows have come back");
    Ok(())
}
