//! Known mistakes: what implementations of the operators get wrong, each another value of one decision or two of the
//! [oracle](crate::oracle).
//!
//! They are rows of a table, in `arithmetic.yaml`, `storage.yaml` and `attention.yaml`: a name, the rule that is
//! broken, the decisions and their values, and a sentence. A row with several numbers `n` stands for as many mistakes.
//! To add one, add a row; it must be wrong in some case that names its rule.

use std::sync::LazyLock;

use serde::Deserialize;

use crate::oracle::attention::predict::Attention;
use crate::oracle::{Behavior, Oracle};
use crate::rules::{OperatorPage, rule};

/// A mistake that implementations make.
#[derive(Debug, Clone, PartialEq)]
pub struct Mistake {
    /// Its name, in words with hyphens.
    pub name: String,
    /// What is probably wrong, and where to look for it.
    pub about: String,
    /// The rule that it breaks, as the page of its operator names it.
    pub rule: String,
    behavior: Behavior,
    attention: Attention,
}

/// A row of the table. In the texts, `{n}` is the number.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    name: String,
    rule: String,
    about: String,
    #[serde(default)]
    n: Vec<usize>,
    #[serde(default)]
    set: Behavior,
    #[serde(default)]
    attend: Attention,
}

/// Every known mistake. One that changes little comes before one that changes the same and more: where several explain
/// a result equally well, the first is the most specific.
pub fn mistakes() -> &'static [Mistake] {
    static ALL: LazyLock<Vec<Mistake>> = LazyLock::new(|| {
        let tables = [include_str!("arithmetic.yaml"), include_str!("storage.yaml"), include_str!("attention.yaml")];
        let rows = tables.map(|table| serde_yaml::from_str::<Vec<Row>>(table).expect("a table of mistakes"));
        rows.iter().flatten().flat_map(Row::mistakes).collect()
    });
    &ALL
}

impl Row {
    fn mistakes(&self) -> Vec<Mistake> {
        let of = |n: Option<usize>| {
            let text = |text: &str| n.map_or_else(|| text.to_owned(), |n| text.replace("{n}", &n.to_string()));
            Mistake {
                name: text(&self.name),
                about: text(&self.about),
                rule: self.rule.clone(),
                behavior: self.set,
                attention: Attention { n: n.unwrap_or(self.attend.n), ..self.attend },
            }
        };
        if self.n.is_empty() { vec![of(None)] } else { self.n.iter().map(|&n| of(Some(n))).collect() }
    }
}

impl Mistake {
    /// The oracle that makes this mistake and no other.
    pub fn oracle(&self) -> Oracle {
        Oracle { behavior: self.behavior, attention: self.attention }
    }

    /// Whether it is one of attention, which `KeyValueCache` cannot make.
    pub fn is_of_attention(&self) -> bool {
        self.behavior == Behavior::default()
    }

    /// The rule of an operator that it breaks, by its id; `None` if it cannot be made there.
    ///
    /// What `KeyValueCache` gives, attention sees: a mistake in it breaks the same rule or, where the attention
    /// operators have not got that, their equivalence to `KeyValueCache` and then attention.
    pub fn rule_on(&self, page: OperatorPage) -> Option<&'static str> {
        let attends = matches!(page, OperatorPage::MultiHeadAttention | OperatorPage::MultiHeadCacheAttention);
        // Where attention reads a cache, num_repeat is 1.
        if attends && self.rule == "num-repeat" || !attends && self.is_of_attention() {
            return None;
        }
        let page = if attends { OperatorPage::MultiHeadCacheAttention } else { page };
        let otherwise = match &self.rule[..] {
            _ if attends => "equivalence",
            "inputs.packed" => "stored-positions",
            "outputs.packed" => "loaded-positions",
            "untouched-slots" => "untouched-positions",
            _ => "quantizing.groups",
        };
        Some(&rule(page, &self.rule).or_else(|| rule(page, otherwise))?.id)
    }
}
