//! What is demanded of an implementation.

/// What is demanded of an implementation that runs a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Demand {
    /// What the case says.
    AsExpected,
    /// To refuse every call, with whatever error, and to leave the state as it was: it does not do what the case needs.
    Refusal,
}
