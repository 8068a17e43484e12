//! The attention's mass: the weights of each key, summed over the queries of its sequence.

use kvcache_schema::ElementType::Float32;

use crate::oracle::attention::attend::{Attended, Scored};
use crate::oracle::attention::predict::{Attention, MassOf};
use crate::oracle::attention::ragged::{Query, Ragged};
use crate::oracle::attention::tolerance::{tolerance, tolerance_of_sum};

/// What has been summed for each query head and each key, shape (Hq, `kvstarts[B]`).
pub(super) struct Mass {
    total_kvlen: usize,
    sums: Vec<f64>,
    /// Of the weights, and of their tolerances.
    squares: [Vec<f64>; 2],
}

impl Mass {
    pub(super) fn new(ragged: &Ragged) -> Self {
        let zeros = vec![0.0; ragged.num_heads * ragged.totals()[1] as usize];
        Self { total_kvlen: ragged.totals()[1] as usize, squares: [zeros.clone(), zeros.clone()], sums: zeros }
    }

    /// Adds the weights of the keys that a query sees. Each is what its output were over unit vectors as values.
    pub(super) fn add(&mut self, attention: &Attention, ragged: &Ragged, query: &Query, keys: &[Scored]) {
        let counts = match attention.mass {
            MassOf::AllQueries => 1.0,
            MassOf::MeanOfQueries => 1.0 / query.n as f64,
            MassOf::LastQuery => f64::from(query.i == query.n - 1),
        };
        let weights: Vec<_> = keys.iter().map(|key| key.weight).collect();
        let mut allowed = vec![0.0; keys.len()];
        let unit = |key: &Scored, d: usize| f64::from(key.j == keys[d].j);
        tolerance((ragged.t1, Float32), ragged.head_dim, keys, &weights, unit, &mut allowed);
        let first = query.h * self.total_kvlen + ragged.first_key(query.b);
        for (key, allowed) in keys.iter().zip(allowed).filter(|(key, _)| (0..query.m).contains(&key.j)) {
            let i = first + key.j as usize;
            self.sums[i] += key.weight * counts;
            self.squares[0][i] += (key.weight * counts).powi(2);
            self.squares[1][i] += (allowed * counts).powi(2);
        }
    }

    pub(super) fn attended(self, ragged: &Ragged) -> Attended {
        let Self { total_kvlen, sums: values, squares: [weights, allowed] } = self;
        let mut tolerance = vec![0.0; values.len()];
        for (b, h) in (0..ragged.len()).flat_map(|b| (0..ragged.num_heads).map(move |h| (b, h))) {
            let first = h * total_kvlen + ragged.first_key(b);
            for i in first..first + ragged.kvlen(b) as usize {
                tolerance[i] = tolerance_of_sum(ragged.seqlen(b) as f64, values[i], weights[i], allowed[i]);
            }
        }
        let shape = vec![ragged.num_heads, total_kvlen];
        Attended { element: Float32, shape, values, tolerance, unrounded: None, mass: None }
    }
}
