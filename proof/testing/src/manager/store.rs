//! A store for tests that counts, and does all that stores do wrong, if it is told to.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::sleep;
use std::time::Duration;

use bytes::Bytes;
use kvcache_conformance::random::Unstructured;
use kvcache_manager::{Block, BlockKey, BlockKind, BlockStore, StoreError, up_to_missing};

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fault {
    None,
    /// Does nothing, and says so.
    Fail,
    Panic,
    /// Does nothing, and does not say so.
    Lose,
    /// Takes so many milliseconds.
    Slow(u8),
    /// Does not answer before the gate is opened.
    Hang,
    /// Of what is put, or of the last block that is read, bytes are missing, a bit is another, or bytes are added.
    Cut(usize),
    Flip(usize),
    Extend(usize),
    /// A chain is in another order, has a block twice, or ends with one of another key, which is said to be there.
    Reverse,
    Twice,
    Other(usize),
}

impl Fault {
    /// A fault that is not `None`; with `waits` perhaps one that takes time.
    pub fn draw(entropy: &mut Unstructured, waits: bool) -> Self {
        let (which, at) = (entropy.below(if waits { 11 } else { 8 }), entropy.below(1 << 16));
        match which {
            0 => Self::Fail,
            1 => Self::Lose,
            2 => Self::Cut(at),
            3 => Self::Flip(at),
            4 => Self::Extend(at % 256),
            5 => Self::Reverse,
            6 => Self::Twice,
            7 => Self::Other(at),
            8 | 9 => Self::Slow(at as u8 % 20),
            _ => Self::Hang,
        }
    }

    fn alter(self, block: &[u8]) -> Bytes {
        let mut bytes = block.to_vec();
        match self {
            Self::Cut(by) => bytes.truncate(bytes.len().saturating_sub(1 + by % bytes.len().max(1))),
            Self::Flip(at) if !bytes.is_empty() => bytes[at / 8 % block.len()] ^= 1 << (at % 8),
            Self::Extend(by) => bytes.resize(bytes.len() + 1 + by, 0),
            _ => {}
        }
        bytes.into()
    }
}

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

/// Blocks in memory.
#[derive(Debug, Default)]
pub struct Store {
    pub blocks: Mutex<HashMap<BlockKey, Bytes>>,
    /// The faults of calls, one after the other; after the last one comes the first again.
    faults: Mutex<(Vec<Fault>, usize)>,
    /// What goes wrong in every fourth call or so, in place of them.
    drawn: Option<Mutex<Unstructured>>,
    calls: AtomicUsize,
    gets: AtomicUsize,
    pub gate: Gate,
}

impl Store {
    /// A store in which anything goes wrong, but nothing takes time.
    pub fn faulty(seed: u64) -> Self {
        Self { drawn: Some(Mutex::new(Unstructured::seed(seed))), ..Self::default() }
    }

    /// A store with these blocks and faults.
    pub fn holding(blocks: impl Iterator<Item = (BlockKey, Block)>, faults: &[Fault]) -> Arc<Self> {
        let blocks = Mutex::new(blocks.map(|(key, block)| (key, stored(&block))).collect());
        Arc::new(Self { blocks, faults: Mutex::new((faults.to_vec(), 0)), ..Self::default() })
    }

    /// The faults of the calls from now on.
    pub fn set(&self, faults: &[Fault]) {
        *self.faults.lock().unwrap() = (faults.to_vec(), 0);
    }

    pub fn is_faulty(&self) -> bool {
        self.drawn.is_some() || !self.faults.lock().unwrap().0.is_empty()
    }

    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    /// The blocks that were asked for.
    pub fn gets(&self) -> usize {
        self.gets.load(Ordering::SeqCst)
    }

    pub fn num_blocks(&self) -> usize {
        self.blocks.lock().unwrap().len()
    }

    pub fn count(&self, kind: BlockKind) -> usize {
        let blocks = self.blocks.lock().unwrap();
        blocks.iter().filter(|(key, bytes)| Block::verify(key, (*bytes).clone()).unwrap().kind() == kind).count()
    }

    /// The fault of a call that now begins; none where the call does nothing.
    fn fault(&self) -> Result<Option<Fault>, StoreError> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let fault = match &self.drawn {
            Some(entropy) => {
                let mut entropy = entropy.lock().unwrap();
                if entropy.one_in(4) { Fault::draw(&mut entropy, false) } else { Fault::None }
            }
            None => {
                let (faults, next) = &mut *self.faults.lock().unwrap();
                *next += 1;
                if faults.is_empty() { Fault::None } else { faults[(*next - 1) % faults.len()] }
            }
        };
        match fault {
            Fault::Fail => return Err(StoreError::Failed("injected".into())),
            Fault::Panic => panic!("injected"),
            Fault::Lose => return Ok(None),
            Fault::Slow(milliseconds) => sleep(Duration::from_millis(milliseconds.into())),
            Fault::Hang => self.gate.wait(),
            _ => {}
        }
        Ok(Some(fault))
    }
}

/// The bytes of a block, as a store keeps them.
pub fn stored(block: &Block) -> Bytes {
    block.parts().concat().into()
}

impl BlockStore for Store {
    fn get(&self, key: &BlockKey) -> Result<Option<Block>, StoreError> {
        let (mut blocks, error) = self.get_chain(&[*key]);
        error.map_or(Ok(blocks.pop()), Err)
    }

    fn put(&self, key: &BlockKey, block: Block) -> Result<(), StoreError> {
        let may_differ = self.is_faulty() || block.kind() == BlockKind::Prefix;
        let Some(fault) = self.fault()? else { return Ok(()) };
        let bytes = fault.alter(&stored(&block));
        let before = self.blocks.lock().unwrap().insert(*key, bytes.clone());
        // Clones of a manager store the same rows.
        assert!(may_differ || before.is_none_or(|before| before == bytes), "a key of one sequence is used once");
        Ok(())
    }

    fn contains(&self, key: &BlockKey) -> Result<bool, StoreError> {
        let fault = self.fault()?;
        let is_there = self.blocks.lock().unwrap().contains_key(key);
        Ok(fault.is_some_and(|fault| is_there || matches!(fault, Fault::Other(_))))
    }

    fn delete(&self, key: &BlockKey) -> Result<(), StoreError> {
        if self.fault()?.is_some() {
            self.blocks.lock().unwrap().remove(key);
        }
        Ok(())
    }

    fn get_chain(&self, keys: &[BlockKey]) -> (Vec<Block>, Option<StoreError>) {
        self.gets.fetch_add(keys.len(), Ordering::SeqCst);
        // What is drawn goes wrong anywhere in a chain.
        let first = self.drawn.as_ref().map_or(0, |entropy| entropy.lock().unwrap().below(keys.len().max(1)));
        let (mut blocks, error) = self.read(&keys[..first]);
        if blocks.len() < first {
            return (blocks, error);
        }
        let (more, error) = self.read(&keys[first..]);
        blocks.extend(more);
        (blocks, error)
    }
}

impl Store {
    /// A chain, in one call that has one fault.
    fn read(&self, keys: &[BlockKey]) -> (Vec<Block>, Option<StoreError>) {
        if keys.is_empty() {
            return (Vec::new(), None);
        }
        let fault = match self.fault() {
            Ok(None) => return (Vec::new(), None),
            Ok(Some(fault)) => fault,
            Err(error) => return (Vec::new(), Some(error)),
        };
        let held = self.blocks.lock().unwrap();
        let mut blocks: Vec<_> = keys.iter().map_while(|key| held.get(key).cloned()).collect();
        let count = blocks.len();
        match fault {
            Fault::Reverse => blocks.reverse(),
            Fault::Twice if count > 1 => blocks[1] = blocks[0].clone(),
            Fault::Other(at) if count > 0 => blocks[count - 1] = held.values().nth(at % held.len()).unwrap().clone(),
            _ => {}
        }
        drop(held);
        if let Some(last) = blocks.last_mut() {
            *last = fault.alter(last);
        }
        up_to_missing(keys.iter().zip(blocks).map(|(key, bytes)| Ok(Some(Block::verify(key, bytes)?))))
    }
}
