//! Methods of Python's lists and tuples that change nothing. (jinja2's sandbox refuses the others.)

use minijinja::value::Value as JinjaValue;

use super::{Call, Result, refuse};

/// `None` for methods that are not here.
pub(super) fn method(
    list: &JinjaValue,
    method: &str,
    args: &[JinjaValue],
) -> Option<Result<JinjaValue>> {
    Some(match method {
        "copy" => Call::of(args, &[]).map(|_| list.clone()),
        "index" => index(list, args),
        _ => return None,
    })
}

fn index(list: &JinjaValue, args: &[JinjaValue]) -> Result<JinjaValue> {
    let call = Call::of(args, &["value", "start", "stop"])?;
    let items: Vec<JinjaValue> = list.try_iter()?.collect();
    let (start, stop) = super::strings::bounds(items.len(), call.int(1)?, call.int(2)?);
    let wanted = call.needed(0)?;
    let found =
        items.get(start..stop).and_then(|items| items.iter().position(|item| item == wanted));
    found.map(|at| (start + at).into()).ok_or_else(|| refuse("the value is not in the list"))
}

/// The items of a value; none has none to give, and what is undefined is empty.
pub(super) fn iterated(value: &JinjaValue) -> Result<Vec<JinjaValue>> {
    if value.is_none() {
        return Err(refuse("none is not iterable"));
    }
    Ok(value.try_iter()?.collect())
}
