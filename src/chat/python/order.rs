//! What Python puts in order, and what it refuses to: comparisons, sorted lists, groups.

use std::cmp::Ordering;
use std::sync::Arc;

use minijinja::value::{Enumerator, Object, ObjectRepr, Tuple, Value as JinjaValue, ValueKind};

use super::lists::iterated;
use super::{Call, Result, refuse, str};

/// The filter that stands for `<`, `>`, `<=` and `>=` in templates: its left side is the value.
pub(in crate::chat) const COMPARE: &str = "__compare__";

/// `left operator right`, of values that Python puts in order.
pub(super) fn compare(left: &JinjaValue, operator: &str, right: &JinjaValue) -> Result<bool> {
    comparable([left, right].into_iter())?;
    Ok(match operator {
        "<" => left < right,
        ">" => left > right,
        "<=" => left <= right,
        _ => left >= right,
    })
}

/// Whether Python can order the values: numbers among themselves, texts among themselves, and so on.
pub(super) fn comparable<'v>(values: impl Iterator<Item = &'v JinjaValue>) -> Result<()> {
    let kind = |value: &JinjaValue| match value.kind() {
        ValueKind::Bool => ValueKind::Number,
        kind => kind,
    };
    let kinds: Vec<ValueKind> = values.map(kind).collect();
    let has_order = |kind: &ValueKind| {
        matches!(kind, ValueKind::Number | ValueKind::String | ValueKind::Seq | ValueKind::Bytes)
    };
    let Some(first) = kinds.first() else { return Ok(()) };
    if kinds.len() > 1 && !has_order(first) {
        return Err(refuse(format!("values such as {first} have no order")));
    }
    match kinds.iter().find(|kind| *kind != first) {
        Some(other) => Err(refuse(format!("{first} and {other} have no order"))),
        None => Ok(()),
    }
}

/// A text in lower case where case plays no part.
fn folded(value: JinjaValue, sensitive: bool) -> JinjaValue {
    match value.as_str() {
        Some(text) if !sensitive => text.to_lowercase().into(),
        _ => value,
    }
}

/// What a dotted attribute, or an index, is of an item.
pub(super) fn attribute(item: &JinjaValue, path: &JinjaValue) -> Result<JinjaValue> {
    let Some(path) = path.as_str() else { return item.get_item(path) };
    path.split('.').try_fold(item.clone(), |value, part| match part.parse::<usize>() {
        Ok(index) => value.get_item(&index.into()),
        Err(_) => value.get_item(&part.into()),
    })
}

/// Pairs of keys and items by their keys; equals keep their order, backwards too.
fn sorted<T>(pairs: &mut [(Vec<JinjaValue>, T)], reverse: bool) -> Result<()> {
    let parts = pairs.iter().map(|(keys, _)| keys.len()).max().unwrap_or(0);
    for part in 0..parts {
        comparable(pairs.iter().filter_map(|(keys, _)| keys.get(part)))?;
    }
    pairs.sort_by(|(a, _), (b, _)| {
        let order = a.iter().zip(b).map(|(a, b)| a.cmp(b)).find(|order| order.is_ne());
        let order = order.unwrap_or(Ordering::Equal);
        if reverse { order.reverse() } else { order }
    });
    Ok(())
}

/// `sort(reverse, case_sensitive, attribute)`.
pub(super) fn sort(value: &JinjaValue, call: &Call) -> Result<JinjaValue> {
    let sensitive = call.holds(1, false);
    let paths: Vec<JinjaValue> = match call.get(2) {
        Some(paths) if paths.as_str().is_some() => {
            str(paths).split(',').map(|path| path.into()).collect()
        }
        Some(index) => vec![index.clone()],
        None => Vec::new(),
    };
    let keys = |item: &JinjaValue| -> Result<Vec<JinjaValue>> {
        match paths.is_empty() {
            true => Ok(vec![folded(item.clone(), sensitive)]),
            false => {
                paths.iter().map(|path| Ok(folded(attribute(item, path)?, sensitive))).collect()
            }
        }
    };
    let items = iterated(value)?.into_iter();
    let mut pairs = items.map(|item| Ok((keys(&item)?, item))).collect::<Result<Vec<_>>>()?;
    // Python compares lists of keys here, and of equal ones no key.
    if pairs.windows(2).any(|pair| pair[0].0 != pair[1].0) {
        sorted(&mut pairs, call.holds(0, false))?;
    }
    Ok(pairs.into_iter().map(|(_, item)| item).collect())
}

/// `dictsort(case_sensitive, by, reverse)`.
pub(super) fn dict_sort(value: &JinjaValue, call: &Call) -> Result<JinjaValue> {
    if value.kind() != ValueKind::Map {
        return Err(refuse("a mapping is wanted"));
    }
    let by_value = match call.text(1)?.unwrap_or("key") {
        "key" => false,
        "value" => true,
        _ => return Err(refuse("you can only sort by either \"key\" or \"value\"")),
    };
    let mut pairs = Vec::new();
    for key in value.try_iter()? {
        let item = value.get_item(&key)?;
        let by = if by_value { item.clone() } else { key.clone() };
        pairs.push((vec![folded(by, call.holds(0, false))], (key, item)));
    }
    sorted(&mut pairs, call.holds(2, false))?;
    Ok(pairs.into_iter().map(|(_, pair)| JinjaValue::from(pair)).collect())
}

/// `groupby(attribute, default, case_sensitive)`: pairs of what is common and the items.
pub(super) fn group_by(value: &JinjaValue, call: &Call) -> Result<JinjaValue> {
    let (path, sensitive) = (call.needed(0)?, call.holds(2, false));
    let mut pairs = Vec::new();
    for item in iterated(value)? {
        let mut key = attribute(&item, path)?;
        if let (true, Some(default)) = (key.is_undefined(), call.get(1)) {
            key = default.clone();
        }
        pairs.push((vec![folded(key.clone(), sensitive)], (key, item)));
    }
    sorted(&mut pairs, false)?;
    let mut groups: Vec<(JinjaValue, Group)> = Vec::new();
    for (mut folded, (key, item)) in pairs {
        let folded = folded.remove(0);
        match groups.last_mut() {
            Some((last, group)) if *last == folded => group.list.push(item),
            // It goes by the key of its first item, as that is written.
            _ => groups.push((folded, Group { grouper: key, list: vec![item] })),
        }
    }
    Ok(groups.into_iter().map(|(_, group)| JinjaValue::from_object(group)).collect())
}

/// A named pair: what its items have in common, and the items.
#[derive(Debug)]
pub(super) struct Group {
    grouper: JinjaValue,
    list: Vec<JinjaValue>,
}

impl Group {
    /// As Python writes it: a pair like any other.
    pub fn pair(&self) -> Tuple {
        Tuple::from([self.grouper.clone(), JinjaValue::from(self.list.clone())])
    }
}

impl Object for Group {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &JinjaValue) -> Option<JinjaValue> {
        match (key.as_usize(), key.as_str()) {
            (Some(0), _) | (_, Some("grouper")) => Some(self.grouper.clone()),
            (Some(1), _) | (_, Some("list")) => Some(self.list.clone().into()),
            _ => None,
        }
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(2)
    }
}
