//! Who runs in which step. Where rows lie is the manager's business.

use std::collections::VecDeque;
use std::path::Path;

use kvcache_manager::op::{ElementType, KeyValueCache, Serial};
use kvcache_manager::{Append, CacheSpec, ContextShift, Error, HostMemory, Manager, Mode, SeqId, Stats};
use ndarray::Array5;

use super::{Result, toy};

/// The positions that a sequence may have, and how many of the first ones a shift keeps.
const N_CTX: i64 = 28;
const N_KEEP: i64 = 4;

/// A request, and the tokens of its context. The last one is not stored yet.
pub struct Request {
    pub name: &'static str,
    pub tokens: Vec<u32>,
    remaining: usize,
    /// What the toy adds to each token: the other way that a fork goes.
    bias: u32,
}

pub struct Server {
    op: KeyValueCache,
    cache: Array5<f32>,
    manager: Manager,
    running: Vec<(SeqId, Request)>,
    waiting: VecDeque<Request>,
}

impl Server {
    pub fn new(page_size: usize) -> Result<Self> {
        let spec = CacheSpec::builder(toy::GEOMETRY)
            .cache_type(ElementType::Float32)
            .mode(Mode::Paged { page_size })
            .rope(toy::ROPE)
            .fingerprint("toy")
            .build()?;
        Ok(Self {
            op: KeyValueCache::new(spec.attributes())?,
            cache: Array5::zeros(spec.cache_shape()),
            manager: Manager::new(spec)?,
            running: Vec::new(),
            waiting: VecDeque::new(),
        })
    }

    pub fn submit(&mut self, name: &'static str, prompt: &[u32], new_tokens: usize) {
        self.waiting.push_back(Request { name, tokens: prompt.to_vec(), remaining: new_tokens, bias: 0 });
    }

    /// A second answer to what a running request has so far. No bytes move.
    pub fn fork(&mut self, of: &str, name: &'static str, bias: u32) -> Result<()> {
        let (seq, request) = self.running.iter().find(|(_, request)| request.name == of).ok_or("no such request")?;
        println!("{name}: forked from {of} at {} tokens", request.tokens.len());
        let fork = Request { name, tokens: request.tokens.clone(), remaining: request.remaining, bias };
        self.running.push((self.manager.fork(*seq)?, fork));
        Ok(())
    }

    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Figures of the cache, all invariants checked.
    pub fn stats(&self) -> Result<Stats> {
        self.manager.check()?;
        Ok(self.manager.stats())
    }

    /// Writes the rows of all that run to a file, and gives the requests; the server and its cache are gone.
    pub fn save(mut self, path: &Path) -> Result<Vec<Request>> {
        let mut memory = HostMemory::new(self.manager.spec(), (&mut self.cache).into(), None, &Serial)?;
        self.manager.update(&mut memory)?; // a file holds no work that is still to be done
        self.manager.save(path, &memory)?;
        Ok(self.running.into_iter().map(|(_, request)| request).chain(self.waiting).collect())
    }

    /// Takes up requests that another server has saved: nothing of them is computed again.
    pub fn resume(&mut self, path: &Path, requests: Vec<Request>) -> Result<()> {
        let mut memory = HostMemory::new(self.manager.spec(), (&mut self.cache).into(), None, &Serial)?;
        let seqs = self.manager.load(path, &mut memory)?;
        let mut requests = requests.into_iter();
        for (seq, request) in seqs.into_iter().zip(&mut requests) {
            println!("{}: resumed with {} rows", request.name, self.manager.seq_len(seq)?);
            self.running.push((seq, request));
        }
        self.waiting.extend(requests);
        Ok(())
    }

    /// A step of all that run; gives the requests that it has finished.
    pub fn step(&mut self) -> Result<Vec<Request>> {
        self.shift()?;
        while let Some(request) = self.waiting.pop_front() {
            self.running.push((self.manager.create(), request));
            if !self.has_room()? {
                self.preempt()?;
                if !self.running.is_empty() {
                    break;
                }
            }
        }
        while !self.has_room()? {
            self.preempt()?;
        }
        if self.running.is_empty() {
            return Ok(Vec::new());
        }
        let appends = appends(&self.manager, &self.running)?;
        let mut memory = HostMemory::new(self.manager.spec(), (&mut self.cache).into(), None, &Serial)?;
        let step = self.manager.begin_step(&appends)?.apply(&mut memory)?;
        for (&append, &cached) in step.order().iter().zip(step.cached()).filter(|(_, cached)| **cached > 0) {
            println!("{}: {cached} of its tokens are in the cache already", self.running[append as usize].1.name);
        }
        let order = step.order().iter().map(|&append| &self.running[append as usize].1);
        let expected: Vec<u32> = order.flat_map(|request| request.tokens.iter().copied()).collect();
        toy::run(&self.op, &mut memory, &step, &expected)?;
        step.commit();

        let mut finished = Vec::new();
        for (seq, mut request) in std::mem::take(&mut self.running) {
            let last = request.tokens.last().ok_or("a request has tokens")?;
            request.tokens.push(toy::next(*last, request.bias));
            request.remaining -= 1;
            if request.remaining > 0 {
                self.running.push((seq, request));
            } else {
                self.manager.free(seq)?;
                finished.push(request);
            }
        }
        Ok(finished)
    }

    /// Makes room in the context of those that have outgrown it: half of what is behind the first tokens goes, the rest
    /// moves to lower positions. The next step turns their keys.
    fn shift(&mut self) -> Result<()> {
        let shift = ContextShift { n_ctx: N_CTX, n_new: 1, n_keep: N_KEEP, n_discard: None };
        for (seq, request) in &mut self.running {
            let discarded = self.manager.context_shift(*seq, &shift)?;
            if discarded > 0 {
                println!("{}: {discarded} of {} positions discarded", request.name, request.tokens.len() - 1);
                request.tokens.drain(N_KEEP as usize..(N_KEEP + discarded) as usize);
            }
        }
        Ok(())
    }

    /// Whether there are pages for the next step. A plan that is dropped is rolled back.
    fn has_room(&mut self) -> Result<bool> {
        let appends = appends(&self.manager, &self.running)?;
        match self.manager.begin_step(&appends) {
            Ok(_) => Ok(true),
            Err(Error::OutOfPages { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// The last of the requests that run gives its pages back and waits. Its full pages stay cached as long as nobody
    /// needs them. Where it is the only one it would wait forever, and is refused.
    fn preempt(&mut self) -> Result<()> {
        let (seq, request) = self.running.pop().ok_or("a step of no requests needs pages")?;
        let stored = self.manager.seq_len(seq)?;
        self.manager.free(seq)?;
        if self.running.is_empty() {
            println!("{}: refused, its {} tokens need more pages than there are", request.name, request.tokens.len());
        } else {
            if stored > 0 {
                println!("{}: preempted at {} tokens", request.name, request.tokens.len());
            }
            self.waiting.push_front(request);
        }
        Ok(())
    }
}

/// What each request has and has not stored yet.
fn appends<'a>(manager: &Manager, running: &'a [(SeqId, Request)]) -> Result<Vec<Append<'a>>> {
    let append = |(seq, request): &'a (SeqId, Request)| {
        let stored = manager.seq_len(*seq)?;
        Ok(Append::tokens(*seq, &request.tokens[stored..]))
    };
    running.iter().map(append).collect()
}
