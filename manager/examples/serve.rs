//! A small server on the manager: requests that share a prompt, a fork that goes another way, preemption when the pages
//! run out, and a request that can never fit. A toy takes the network's place: the keys that it stores are token ids, so
//! that what the operator returns shows whether each sequence reads its own rows.

use std::collections::VecDeque;
use std::error::Error as StdError;

use kvcache_manager::op::{ElementType, KeyValueCache, Outputs, Serial};
use kvcache_manager::{Append, CacheSpec, Error, Geometry, HostMemory, Manager, Mode, SeqId, Step};
use ndarray::{Array3, Array5};

type Result<T> = std::result::Result<T, Box<dyn StdError>>;

const GEOMETRY: Geometry = Geometry { num_layer: 2, num_heads: 2, head_dim: 4, max_t: 40 };

/// A request, and the tokens that it has so far. The last one is not stored yet.
struct Request {
    name: &'static str,
    tokens: Vec<u32>,
    /// The number of tokens that it ends with.
    end: usize,
    /// What the toy adds to each token: the other way that a fork goes.
    bias: u32,
}

struct Server {
    op: KeyValueCache,
    cache: Array5<f32>,
    manager: Manager,
    running: Vec<(SeqId, Request)>,
    waiting: VecDeque<Request>,
}

impl Server {
    fn new() -> Result<Self> {
        let spec = CacheSpec::builder(GEOMETRY)
            .cache_type(ElementType::Float32)
            .mode(Mode::Paged { page_size: 4 })
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

    fn submit(&mut self, name: &'static str, prompt: &[u32], new_tokens: usize) {
        let end = prompt.len() + new_tokens;
        self.waiting.push_back(Request { name, tokens: prompt.to_vec(), end, bias: 0 });
    }

    /// A second answer to what a running request has so far. No bytes move.
    fn fork(&mut self, of: &str, name: &'static str, bias: u32) -> Result<()> {
        let (seq, request) = self.running.iter().find(|(_, request)| request.name == of).ok_or("no such request")?;
        println!("{name}: forked from {of} at {} tokens", request.tokens.len());
        let fork = Request { name, tokens: request.tokens.clone(), end: request.end, bias };
        self.running.push((self.manager.fork(*seq)?, fork));
        Ok(())
    }

    /// A step of all that run; gives the requests that it has finished.
    fn step(&mut self) -> Result<Vec<Request>> {
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
        let spec = self.manager.spec().clone();
        let mut memory = HostMemory::new(&spec, (&mut self.cache).into(), None, &Serial)?;
        let step = self.manager.begin_step(&appends)?.apply(&mut memory)?;
        for (&append, &cached) in step.order().iter().zip(step.cached()).filter(|(_, cached)| **cached > 0) {
            println!("{}: {cached} of its tokens are in the cache already", self.running[append as usize].1.name);
        }
        run_toy(&self.op, &mut self.cache, &step, &self.running)?;
        step.commit();

        let mut finished = Vec::new();
        for (seq, mut request) in std::mem::take(&mut self.running) {
            let last = request.tokens.last().ok_or("a request has tokens")?;
            request.tokens.push((last * 7 + request.bias) % 97);
            if request.tokens.len() < request.end {
                self.running.push((seq, request));
            } else {
                self.manager.free(seq)?;
                finished.push(request);
            }
        }
        Ok(finished)
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
        self.manager.free(seq)?;
        if self.running.is_empty() {
            println!("{}: refused, its {} tokens need more pages than there are", request.name, request.tokens.len());
        } else {
            println!("{}: preempted at {} tokens", request.name, request.tokens.len());
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

/// Stores every token's id as its key and value in all layers, and checks that each request reads its own tokens.
fn run_toy(op: &KeyValueCache, cache: &mut Array5<f32>, step: &Step<'_>, running: &[(SeqId, Request)]) -> Result<()> {
    let Geometry { num_layer, num_heads, head_dim, .. } = GEOMETRY;
    let mut layers = op.check_layers(ElementType::Float32, &step.layers_inputs(), cache.into(), None)?;
    let current =
        Array3::from_shape_fn((step.token_ids().len(), num_heads, head_dim), |(t, ..)| step.token_ids()[t] as f32);
    let mut key = Array3::<f32>::zeros(layers.output_shape());
    let mut value = key.clone();
    for layer_idx in 0..num_layer {
        let outputs = Outputs { key: (&mut key).into(), value: (&mut value).into() };
        layers.layer(layer_idx, &(&current).into(), &(&current).into())?.run(outputs, &Serial)?;
        let order = step.order().iter().map(|&append| &running[append as usize].1);
        let expected = order.flat_map(|request| &request.tokens).map(|&token| token as f32);
        if !key.rows().into_iter().step_by(num_heads).map(|head| head[0]).eq(expected) {
            return Err("a request has read tokens that are not its own".into());
        }
    }
    Ok(())
}

fn main() -> Result<()> {
    let mut server = Server::new()?;
    server.submit("too long", &[7; GEOMETRY.max_t + 1], 1);
    let system = [3, 1, 4, 1, 5, 9, 2, 6];
    server.submit("first", &[&system[..], &[11, 12]].concat(), 12);
    server.submit("second", &[&system[..], &[21]].concat(), 8);
    for step in 0.. {
        if step == 2 {
            server.fork("first", "fork", 5)?;
        }
        if step == 3 {
            server.submit("third", &[&system[..], &[31, 32, 33]].concat(), 6);
        }
        for request in server.step()? {
            println!("{}: finished with {:?}", request.name, request.tokens);
        }
        server.manager.check()?;
        let stats = server.manager.stats();
        println!("step {step}: {} slots used, {} cached, {} free", stats.used, stats.cached, stats.free);
        if server.running.is_empty() && server.waiting.is_empty() {
            break;
        }
    }
    Ok(())
}
