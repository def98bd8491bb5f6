//! How much of what was asked to be quantized can be: decisions in, a warning out where it is little.

use std::collections::BTreeSet;

use super::render::count;
use crate::fault::{Code, Warning};
use crate::format::Formats;
use crate::policy::Decision;

/// Groups and axes that a warning names.
const NAMED: usize = 6;

/// Sums over the matrices that a policy decided about.
#[derive(Default)]
pub(super) struct Reach {
    /// Elements of all of them.
    matrices: u64,
    /// Elements of those for which a rule wants a format, and of those that get one.
    asked: u64,
    reached: u64,
    /// The tensors that get none, for no group divides their last axis; the first of them.
    left: u64,
    first: Option<String>,
    axes: BTreeSet<u64>,
    groups: BTreeSet<u64>,
}

impl Reach {
    /// Counts a tensor. Vectors are never quantized and do not count.
    pub(super) fn add(&mut self, tensor: &str, shape: &[u64], decision: &Decision) {
        if shape.len() < 2 {
            return;
        }
        let elements = shape.iter().product::<u64>();
        self.matrices += elements;
        if decision.format.is_some() {
            self.asked += elements;
            self.reached += elements;
        } else if !decision.misfits.is_empty() {
            self.asked += elements;
            self.left += 1;
            self.first.get_or_insert_with(|| tensor.to_string());
            self.axes.extend(shape.last());
            self.groups.extend(decision.misfits.iter().map(|misfit| misfit.group));
        }
    }

    /// What to say when less than half of the weights that `format` was asked for get one.
    pub(super) fn warning(&self, format: &str) -> Option<Warning> {
        let Reach { matrices, asked, reached, left, .. } = *self;
        if reached * 2 >= asked.max(1) || matrices == 0 {
            return None;
        }
        let Some(first) = &self.first else {
            let message =
                format!("nothing is quantized to {format}: no rule wants it of any weight");
            return Some(Warning::new(Code::LittleQuantized, message));
        };
        let (share, are) = match reached {
            0 => (format!("none of the {} weights", count(asked)), "is"),
            _ => (
                format!(
                    "only {:.1} % of the weights ({} of {})",
                    reached as f64 * 100.0 / asked as f64,
                    count(reached),
                    count(asked)
                ),
                "are",
            ),
        };
        let message = format!(
            "{share} that {format} was asked for {are} quantized: no group ({}) divides the last axis \
             ({}) of {left} tensors, which stay at source precision{}",
            numbers(&self.groups),
            numbers(&self.axes),
            self.instead(format)
        );
        Some(Warning::new(Code::LittleQuantized, message).on_tensor(first))
    }

    /// A format of as many bits whose group divides all of them.
    fn instead(&self, format: &str) -> String {
        let formats = Formats::built_in();
        let bits = formats.get(format).map(|format| format.bits);
        let fits = |group: u64| self.axes.iter().all(|axis| axis % group == 0);
        let other = formats.iter().find(|other| Some(other.bits) == bits && fits(other.group));
        other.map_or(String::new(), |other| format!("; {} would fit", other.name))
    }
}

fn numbers(numbers: &BTreeSet<u64>) -> String {
    let shown: Vec<String> = numbers.iter().take(NAMED).map(u64::to_string).collect();
    let more = if numbers.len() > NAMED { ", …" } else { "" };
    format!("{}{more}", shown.join(", "))
}
