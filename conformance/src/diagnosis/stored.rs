//! The cases of both `KeyValueCache`, whose bits count.

use super::candidate::Diagnosable;
use crate::case::Case;
use crate::implementation::CallResult;
use crate::oracle::{Inputs, Oracle, Prediction, SharedAttributes};
use crate::tensor::Tensor;

impl<A: Sync, I: Inputs<A>> Diagnosable for Case<A, I> {
    type Outputs = Vec<Tensor>;

    fn concerns(&self, rule: &str) -> bool {
        concerns(I::shared(&self.attributes), rule)
    }

    fn predicted<'a>(
        &'a self,
        oracle: &'a Oracle,
        _made: Option<&'a [CallResult]>,
    ) -> impl Iterator<Item = Prediction> + 'a {
        oracle.predict(self)
    }

    fn lengths(&self) -> [i64; 2] {
        let inputs = self.steps.iter().map(|step| &step.inputs);
        let tokens = |inputs: &I| {
            let [outer @ .., _, _] = inputs.current()[0].shape() else { return 0 };
            i64::try_from(outer.iter().product::<usize>()).unwrap_or(i64::MAX)
        };
        let most = |lengths: &mut dyn Iterator<Item = i64>| lengths.max().unwrap_or_default();
        [most(&mut inputs.clone().map(tokens)), most(&mut inputs.map(I::kvlen))]
    }
}

/// Whether breaking a rule of `KeyValueCache` alone can change what calls with these attributes do.
pub(super) fn concerns(attributes: SharedAttributes, rule: &str) -> bool {
    match rule.split('.').next() {
        Some("quantizing" | "dequantizing" | "scale") => attributes.quant_bit != 0,
        Some("int4") => attributes.quant_bit == 4,
        Some("num-repeat") => attributes.num_repeat != 1,
        Some("pages") => attributes.cache_mode == Some(1),
        _ if rule == "cache-mode.0" => attributes.cache_mode == Some(0),
        _ if rule == "cache-mode.1" => attributes.cache_mode == Some(1),
        _ => true,
    }
}
