//! Schedules: which layers of n a rule is for, as data.

use std::sync::Arc;

use indexmap::IndexMap;

use super::expr::{BadExpr, Expr, Scope, TensorView};
use super::file::Schedule;

/// A schedule, ready to pick layers.
#[derive(Debug)]
pub struct CompiledSchedule {
    head: (u64, u64),
    tail: Option<(u64, u64)>,
    every: Option<u64>,
    phase: u64,
    until: Option<Expr>,
}

/// What a scope is told of schedules: whether the one of a name picks a layer. One that is not there
/// picks none.
pub fn picker(
    schedules: &IndexMap<String, Arc<CompiledSchedule>>,
) -> impl Fn(&str, i64, i64) -> bool + use<> {
    let schedules = schedules.clone();
    move |name, layer, n| schedules.get(name).is_some_and(|schedule| schedule.picks(layer, n))
}

impl CompiledSchedule {
    /// Reads the fractions and the expression.
    pub fn compile(schedule: &Schedule) -> Result<CompiledSchedule, BadExpr> {
        let fraction = |text: &Option<String>| -> Result<Option<(u64, u64)>, BadExpr> {
            let Some(text) = text else { return Ok(None) };
            let parsed = text.split_once('/').and_then(|(over, under)| {
                let over: u64 = over.trim().parse().ok()?;
                let under: u64 = under.trim().parse().ok()?;
                (under > 0 && over <= under).then_some((over, under))
            });
            parsed.map(Some).ok_or_else(|| BadExpr {
                message: format!("`{text}` is not a fraction between 0/1 and 1/1, such as 1/8"),
                offset: None,
            })
        };
        if schedule.every == Some(0) {
            return Err(BadExpr { message: "`every` is at least 1".into(), offset: None });
        }
        if schedule.every.is_some_and(|every| schedule.phase >= every) {
            let message = "`phase` is below `every`: it is a remainder".into();
            return Err(BadExpr { message, offset: None });
        }
        Ok(CompiledSchedule {
            head: fraction(&schedule.head)?.unwrap_or((0, 1)),
            tail: fraction(&schedule.tail)?,
            every: schedule.every,
            phase: schedule.phase,
            until: match &schedule.until {
                Some(source) => Some(Expr::compile(source, std::iter::empty())?),
                None => None,
            },
        })
    }

    /// Whether layer `layer` of `n` is picked; never for a tensor without a layer (−1), and never
    /// where the number of layers is not known (0).
    pub fn picks(&self, layer: i64, n: i64) -> bool {
        let (Ok(layer), Ok(n)) = (u64::try_from(layer), u64::try_from(n)) else { return false };
        if n == 0 {
            return false;
        }
        let at = |(over, under): (u64, u64)| n * over / under;
        let (head, tail) = (at(self.head), self.tail.map_or(n, at));
        if layer < head || (self.tail.is_some() && layer >= tail) {
            return true;
        }
        let Some(every) = self.every else { return false };
        if let Some(until) = &self.until {
            let mut scope = Scope::new([], |_, _, _| false);
            scope.set("n", &n.into());
            match until.value(&scope, &TensorView::NONE) {
                Ok(Some(cel::Value::Int(until))) if (layer as i64) < until => {}
                _ => return false,
            }
        }
        layer < tail && (layer - head) % every == self.phase
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(until: Option<&str>) -> CompiledSchedule {
        CompiledSchedule::compile(&Schedule {
            head: Some("1/8".into()),
            tail: Some("7/8".into()),
            every: Some(3),
            phase: 2,
            until: until.map(str::to_string),
        })
        .unwrap()
    }

    fn picked(schedule: &CompiledSchedule, n: i64) -> Vec<i64> {
        (-1..n).filter(|&layer| schedule.picks(layer, n)).collect()
    }

    #[test]
    fn edges_and_thirds() {
        // floor(16/8) = 2 at the head, from 14 at the tail; between, (i - 2) mod 3 = 2.
        assert_eq!(picked(&schedule(None), 16), [0, 1, 4, 7, 10, 13, 14, 15]);
        assert_eq!(picked(&schedule(None), 2), [1]);
    }

    #[test]
    fn the_period_stops_early_and_the_edges_stay() {
        assert_eq!(picked(&schedule(Some("n / 2 - 4")), 24), [0, 1, 2, 5, 21, 22, 23]);
    }

    #[test]
    fn fractions_are_checked() {
        let bad =
            Schedule { head: Some("9/8".into()), tail: None, every: None, phase: 0, until: None };
        assert!(CompiledSchedule::compile(&bad).is_err());
    }
}
