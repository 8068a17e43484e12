//! The manager through its public interface: against a naive model, by the specification's golden numbers, and where
//! what it does is subtle.

mod edits;
mod golden;
mod infllm;
mod infllm_cases;
mod operator;
mod prefix;
mod refusals;
mod scripts;
mod self_extend;
mod sessions;
mod states;
mod tiers;
