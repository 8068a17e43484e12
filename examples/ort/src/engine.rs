//! The scheduler: which request runs in which step. The manager places rows, the model computes them.

use std::collections::VecDeque;

use anyhow::{Result, anyhow, ensure};
use kvcache_manager::{Append, Error, Manager, SeqId};

use crate::model::{Memory, Model};

/// The end of a request.
pub struct Answer {
    /// The number of its `submit`, from 0.
    pub request: usize,
    pub tokens: Vec<u32>,
    pub text: String,
}

/// A prompt and its answer so far. The last token is not stored yet.
struct Request {
    number: usize,
    tokens: Vec<u32>,
    prompt: usize,
    len: usize,
}

pub struct Engine {
    model: Model,
    manager: Manager,
    memory: Memory,
    budget: usize,
    context_length: usize,
    submitted: usize,
    waiting: VecDeque<Request>,
    /// The youngest last.
    running: Vec<(SeqId, Request)>,
}

impl Engine {
    /// An engine with slots for `max_tokens`, whose steps join new prompts of `budget` tokens together.
    pub fn new(model: Model, max_tokens: usize, budget: usize) -> Result<Self> {
        let spec = model.spec(max_tokens)?;
        let slots = spec.num_pages() * spec.page_size();
        Ok(Self {
            memory: Memory::new(&spec)?,
            context_length: model.context_length().min(slots),
            manager: Manager::new(spec)?,
            model,
            budget,
            submitted: 0,
            waiting: VecDeque::new(),
            running: Vec::new(),
        })
    }

    /// Adds a prompt, which is answered by up to `max_new_tokens`.
    pub fn submit(&mut self, prompt: &str, max_new_tokens: usize) -> Result<()> {
        let encoding = self.model.tokenizer.encode(prompt, true).map_err(|error| anyhow!(error))?;
        let (tokens, most) = (encoding.get_ids().to_vec(), self.context_length);
        ensure!((1..=most).contains(&tokens.len()), "the prompt has {} tokens, expected 1 to {most}", tokens.len());
        let (prompt, len) = (tokens.len(), (tokens.len() + max_new_tokens.max(1)).min(most + 1));
        self.waiting.push_back(Request { number: self.submitted, tokens, prompt, len });
        self.submitted += 1;
        Ok(())
    }

    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Computes a token of every running request; returns those that have ended.
    pub fn step(&mut self) -> Result<Vec<Answer>> {
        self.join();
        self.make_room()?;
        let appends = appends(&self.manager, &self.running)?;
        let spec = self.manager.spec().clone();
        // Dropped on an error, the step is rolled back.
        let step = self.manager.begin_step(&appends)?.apply(&mut self.memory.host(&spec)?)?;
        let rows: Vec<usize> = step.seqstarts()[1..].iter().map(|&end| end as usize - 1).collect();
        let tokens = self.model.likeliest(&step, &rows, &mut self.memory)?;
        let order = step.order().to_vec();
        step.commit();
        for (&append, token) in order.iter().zip(tokens) {
            self.running[append as usize].1.tokens.push(token);
        }
        let ended = |request: &Request| {
            request.tokens.len() == request.len || request.tokens.last().is_some_and(|&token| self.model.stops(token))
        };
        let (ended, running) = std::mem::take(&mut self.running).into_iter().partition(|(_, request)| ended(request));
        self.running = running;
        ended.into_iter().map(|(seq, request)| self.end(seq, request)).collect()
    }

    /// Lets waiting requests run within the budget. The step finds cached parts of prompts.
    fn join(&mut self) {
        let mut left = self.budget.saturating_sub(self.running.len());
        while let Some(request) = self.waiting.front() {
            if request.tokens.len() > left && !self.running.is_empty() {
                break;
            }
            left = left.saturating_sub(request.tokens.len());
            self.running.extend(self.waiting.pop_front().map(|request| (self.manager.create(), request)));
        }
    }

    /// The youngest free their pages, and wait, until the others have room. Their full pages stay cached as long
    /// as nobody needs them.
    fn make_room(&mut self) -> Result<()> {
        loop {
            let appends = appends(&self.manager, &self.running)?;
            match self.manager.begin_step(&appends).map(drop) {
                Ok(()) => return Ok(()),
                Err(Error::OutOfPages { .. }) if self.running.len() > 1 => {}
                Err(error) => return Err(error.into()),
            }
            if let Some((seq, request)) = self.running.pop() {
                self.manager.free(seq)?;
                self.waiting.push_front(request);
            }
        }
    }

    fn end(&mut self, seq: SeqId, request: Request) -> Result<Answer> {
        self.manager.free(seq)?;
        let tokens = request.tokens[request.prompt..].to_vec();
        let text = self.model.tokenizer.decode(&tokens, true).map_err(|error| anyhow!(error))?;
        Ok(Answer { request: request.number, tokens, text })
    }
}

/// What each request has not stored yet.
fn appends<'a>(manager: &Manager, running: &'a [(SeqId, Request)]) -> Result<Vec<Append<'a>>> {
    let append =
        |(seq, request): &'a (SeqId, Request)| Ok(Append::tokens(*seq, &request.tokens[manager.seq_len(*seq)?..]));
    running.iter().map(append).collect()
}
