//! A store that does all that stores do wrong.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::sleep;
use std::time::Duration;

use bytes::Bytes;
use kvcache_manager::{Block, BlockKey, BlockStore, StoreError, up_to_missing};

use crate::{key, prefix, stored};

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fault {
    None,
    /// Does nothing, and says so.
    Fail,
    /// Does nothing, and does not say so.
    Lose,
    Slow(u8),
    /// Does not answer before the gate is opened.
    Hang,
    /// One of [`BYTES`], and how far it goes: of what is put, or of the last block that is read.
    Bytes(usize, u8),
    /// One of [`CHAINS`].
    Chain(usize),
}

/// Bytes are cut, altered and extended.
pub const BYTES: [fn(&mut Vec<u8>, usize); 3] = [
    |bytes, by| bytes.truncate(bytes.len().saturating_sub(1 + by)),
    |bytes, at| {
        let at = at % bytes.len();
        bytes[at] ^= 1;
    },
    |bytes, by| bytes.resize(bytes.len() + 1 + by, 0),
];

/// Chains are reversed, and have a block twice.
pub const CHAINS: [fn(&mut Vec<Bytes>); 2] = [
    |blocks| blocks.reverse(),
    |blocks| {
        if blocks.len() > 1 {
            blocks[1] = blocks[0].clone();
        }
    },
];

/// Calls that hang wait until it is open.
#[derive(Debug, Default)]
pub struct Gate(Mutex<bool>, Condvar);

impl Gate {
    pub fn open(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_all();
    }

    fn wait(&self) {
        drop(self.1.wait_while(self.0.lock().unwrap(), |open| !*open).unwrap());
    }
}

/// Blocks in memory; of its n-th call, fault n of a list that begins anew at its end.
#[derive(Debug, Default)]
pub struct Faulty {
    pub blocks: Mutex<HashMap<BlockKey, Bytes>>,
    faults: Mutex<Vec<Fault>>,
    calls: AtomicUsize,
    pub gate: Gate,
}

impl Faulty {
    pub fn new(faults: &[Fault]) -> Arc<Self> {
        Self::holding(0..0, faults)
    }

    /// With the prefix blocks of these keys.
    pub fn holding(blocks: Range<u8>, faults: &[Fault]) -> Arc<Self> {
        let blocks = Mutex::new(blocks.map(|i| (key(i), stored(&prefix(i)))).collect());
        Arc::new(Self { blocks, faults: Mutex::new(faults.to_vec()), ..Self::default() })
    }

    pub fn set(&self, faults: &[Fault]) {
        *self.faults.lock().unwrap() = faults.to_vec();
    }

    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    pub fn len(&self) -> usize {
        self.blocks.lock().unwrap().len()
    }

    /// The fault of a call that now begins; none where the call does nothing.
    fn fault(&self) -> Result<Option<Fault>, StoreError> {
        let call = self.calls.fetch_add(1, Ordering::SeqCst);
        let fault = {
            let faults = self.faults.lock().unwrap();
            if faults.is_empty() { Fault::None } else { faults[call % faults.len()] }
        };
        match fault {
            Fault::Fail => return Err(StoreError::Failed("a fault".into())),
            Fault::Lose => return Ok(None),
            Fault::Slow(milliseconds) => sleep(Duration::from_millis(milliseconds.into())),
            Fault::Hang => self.gate.wait(),
            _ => {}
        }
        Ok(Some(fault))
    }
}

fn altered(block: &[u8], fault: Fault) -> Bytes {
    let mut bytes = block.to_vec();
    if let Fault::Bytes(what, by) = fault {
        BYTES[what](&mut bytes, by.into());
    }
    bytes.into()
}

impl BlockStore for Faulty {
    fn get(&self, key: &BlockKey) -> Result<Option<Block>, StoreError> {
        let (mut blocks, error) = self.get_chain(&[*key]);
        error.map_or(Ok(blocks.pop()), Err)
    }

    fn put(&self, key: &BlockKey, block: Block) -> Result<(), StoreError> {
        if let Some(fault) = self.fault()? {
            self.blocks.lock().unwrap().insert(*key, altered(&stored(&block), fault));
        }
        Ok(())
    }

    fn contains(&self, key: &BlockKey) -> Result<bool, StoreError> {
        Ok(self.fault()?.is_some() && self.blocks.lock().unwrap().contains_key(key))
    }

    fn delete(&self, key: &BlockKey) -> Result<(), StoreError> {
        if self.fault()?.is_some() {
            self.blocks.lock().unwrap().remove(key);
        }
        Ok(())
    }

    fn get_chain(&self, keys: &[BlockKey]) -> (Vec<Block>, Option<StoreError>) {
        let fault = match self.fault() {
            Ok(None) => return (Vec::new(), None),
            Ok(Some(fault)) => fault,
            Err(error) => return (Vec::new(), Some(error)),
        };
        let held = self.blocks.lock().unwrap();
        let mut blocks: Vec<_> = keys.iter().map_while(|key| held.get(key).cloned()).collect();
        drop(held);
        if let Fault::Chain(what) = fault {
            CHAINS[what](&mut blocks);
        }
        if let Some(last) = blocks.last_mut() {
            *last = altered(last, fault);
        }
        up_to_missing(keys.iter().zip(blocks).map(|(key, bytes)| Ok(Some(Block::verify(key, bytes)?))))
    }
}
