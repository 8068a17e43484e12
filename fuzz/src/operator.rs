//! Legal calls, one after the other on the same cache: every backend matches the reference bit for bit, in key, value,
//! cache and scale, and the reference matches the conformance suite's oracle.

use kvcache_op::Backend;

use crate::call::{Call, Ended, How, Operator};
use crate::oracle::matches_the_oracle;
use crate::plan::Plan;
use crate::source::Source;
use crate::tally;
use crate::workers::Careless;

/// Runs the target on an input.
pub fn run(bytes: &[u8]) {
    let mut source = Source::new(bytes);
    let operator = if source.one_in(4) { Operator::StaticKeyValueCache } else { Operator::KeyValueCache };
    let calls = source.pick(&[1, 1, 2, 4]);
    let offset = source.below(5) * 4;
    let (streams, parallel, by_layers) = (source.flag(), source.flag(), source.flag());
    let mut plan = Plan::new(&mut source, operator, calls);
    let backends: Vec<Backend> = Backend::all()
        .map(|backend| match backend {
            Backend::Cpu(cpu) => {
                let cpu = if streams { cpu.with_stream_bytes(0) } else { cpu };
                Backend::Cpu(if parallel { cpu.with_parallel_bytes(0) } else { cpu })
            }
            other => other,
        })
        .collect();

    tally::note(plan.kinds());
    let workers = Careless(4);
    let mut order: Vec<usize> = (0..plan.sequences.len()).collect();
    let mut call = plan.call(&order);
    for _ in 0..calls {
        tally::count(true);
        let mut reference = None;
        for (i, &backend) in backends.iter().enumerate() {
            let how = match i {
                0 => How { backend, offset, ..How::REFERENCE },
                _ => How { backend, workers: &workers, by_layers, offset, ..How::REFERENCE },
            };
            let ended = call.run(how);
            let Ended::Done(after) = ended else { panic!("a legal call is {ended:?}") };
            match &reference {
                None => {
                    matches_the_oracle(&call, after.clone());
                    reference = Some(after);
                }
                Some(reference) => assert!(after == *reference, "{} is not as the reference", backend.name()),
            }
        }
        let Some(after) = reference else { unreachable!("there is a backend") };
        plan.go_on(&mut source);
        if operator == Operator::KeyValueCache && !order.is_empty() {
            let len = order.len();
            order.rotate_left(source.below(len));
        }
        call = keep_state(plan.call(&order), [("cache", after.cache), ("scale", after.scale)]);
    }
}

/// The call, on what another has left.
fn keep_state(mut call: Call, state: [(&str, Option<Vec<u8>>); 2]) -> Call {
    for (name, bytes) in state {
        if let (Some(operand), Some(bytes)) = (call.operands.iter_mut().find(|operand| operand.name == name), bytes) {
            operand.bytes = bytes;
        }
    }
    call
}
