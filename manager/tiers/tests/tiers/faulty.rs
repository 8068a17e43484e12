//! A store that does all that stores do wrong.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::sleep;
use std::time::Duration;

use bytes::Bytes;
use kvcache_manager::{Block, BlockKey, BlockStore, StoreError};

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
    /// What is read lacks so many bytes, or has one altered, or more.
    Cut(u8),
    Alter(u8),
    Extend(u8),
    /// Gives blocks of a chain in another order, or one of them twice.
    Reverse,
    Repeat,
}

/// Calls that hang wait until it is open.
#[derive(Debug, Default, Clone)]
pub struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    pub fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }

    pub fn wait(&self) {
        drop(self.0.1.wait_while(self.0.0.lock().unwrap(), |open| !*open).unwrap());
    }
}

/// Blocks in memory; of its n-th call, fault n of a list that begins anew at its end.
pub struct Faulty {
    pub blocks: Mutex<HashMap<BlockKey, Bytes>>,
    pub faults: Mutex<Vec<Fault>>,
    pub calls: AtomicUsize,
    pub gate: Gate,
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Faulty({:?})", self.faults)
    }
}

impl Faulty {
    pub fn new(faults: &[Fault]) -> Arc<Self> {
        let (blocks, calls, gate) = Default::default();
        Arc::new(Self { blocks, faults: Mutex::new(faults.to_vec()), calls, gate })
    }

    pub fn set(&self, faults: &[Fault]) {
        *self.faults.lock().unwrap() = faults.to_vec();
    }

    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    /// The fault of a call that now begins.
    fn fault(&self) -> Result<Fault, StoreError> {
        let call = self.calls.fetch_add(1, Ordering::SeqCst);
        let faults = self.faults.lock().unwrap();
        let fault = if faults.is_empty() { Fault::None } else { faults[call % faults.len()] };
        drop(faults);
        match fault {
            Fault::Fail => return Err(StoreError::Failed("a fault".into())),
            Fault::Slow(milliseconds) => sleep(Duration::from_millis(milliseconds.into())),
            Fault::Hang => self.gate.wait(),
            _ => {}
        }
        Ok(fault)
    }
}

fn altered(block: &[u8], fault: Fault) -> Bytes {
    let mut bytes = block.to_vec();
    match fault {
        Fault::Cut(by) => bytes.truncate(bytes.len().saturating_sub(1 + usize::from(by))),
        Fault::Extend(by) => bytes.extend(vec![0; 1 + usize::from(by)]),
        Fault::Alter(at) => {
            let at = usize::from(at) % bytes.len();
            bytes[at] ^= 1;
        }
        _ => {}
    }
    bytes.into()
}

impl BlockStore for Faulty {
    fn get(&self, key: &BlockKey) -> Result<Option<Block>, StoreError> {
        let (mut blocks, error) = self.get_chain(&[*key]);
        error.map_or(Ok(blocks.pop()), Err)
    }

    fn put(&self, key: &BlockKey, block: Block) -> Result<(), StoreError> {
        let fault = self.fault()?;
        if fault != Fault::Lose {
            self.blocks.lock().unwrap().insert(*key, altered(&crate::stored(&block), fault));
        }
        Ok(())
    }

    fn contains(&self, key: &BlockKey) -> Result<bool, StoreError> {
        let fault = self.fault()?;
        Ok(fault != Fault::Lose && self.blocks.lock().unwrap().contains_key(key))
    }

    fn delete(&self, key: &BlockKey) -> Result<(), StoreError> {
        if self.fault()? != Fault::Lose {
            self.blocks.lock().unwrap().remove(key);
        }
        Ok(())
    }

    fn get_chain(&self, keys: &[BlockKey]) -> (Vec<Block>, Option<StoreError>) {
        let fault = match self.fault() {
            Ok(Fault::Lose) => return (Vec::new(), None),
            Ok(fault) => fault,
            Err(error) => return (Vec::new(), Some(error)),
        };
        let held = self.blocks.lock().unwrap();
        let mut blocks: Vec<_> = keys.iter().map_while(|key| held.get(key).cloned()).collect();
        match fault {
            Fault::Reverse => blocks.reverse(),
            Fault::Repeat => blocks.extend(blocks.first().cloned()),
            _ => {}
        }
        if fault == Fault::Repeat && blocks.len() > 1 {
            blocks.swap_remove(0);
        }
        if let Some(last) = blocks.last_mut() {
            *last = altered(last, fault);
        }
        drop(held);
        let mut verified = Vec::new();
        for (key, bytes) in keys.iter().zip(blocks) {
            match Block::verify(key, bytes) {
                Ok(block) => verified.push(block),
                Err(error) => return (verified, Some(error.into())),
            }
        }
        (verified, None)
    }
}
