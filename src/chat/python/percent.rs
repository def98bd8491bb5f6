//! `"%s of %d" % (a, b)`: Python's older way to put values into a text.

use minijinja::value::{Kwargs, Rest, Tuple, Value as JinjaValue, ValueKind};

use super::{Result, float_text, refuse, repr, with_exponent};

/// The filter that stands for the operator in templates: its left side is the value.
pub(in crate::chat) const FILTER: &str = "__percent__";

/// `left % right`: of texts this here, of anything else the remainder as Python takes it.
pub(in crate::chat) fn percent(left: &JinjaValue, right: &JinjaValue) -> Result<JinjaValue> {
    match left.as_str() {
        Some(text) => format(text, right).map(JinjaValue::from),
        None => remainder(left, right),
    }
}

fn remainder(left: &JinjaValue, right: &JinjaValue) -> Result<JinjaValue> {
    let number = |value: &JinjaValue| match value.kind() {
        ValueKind::Number => Ok(value.clone()),
        ValueKind::Bool => Ok(i64::from(value.is_true()).into()),
        kind => Err(refuse(format!("% takes numbers, not {kind}"))),
    };
    let (left, right) = (number(left)?, number(right)?);
    if left.is_integer() && right.is_integer() {
        let (a, b) = (i128::try_from(left)?, i128::try_from(right)?);
        let rest = a.checked_rem_euclid(b).ok_or_else(|| refuse("modulo by zero"))?;
        // Python's has the sign of the divisor.
        return Ok(if b < 0 && rest != 0 { rest + b } else { rest }.into());
    }
    let (a, b) = (f64::try_from(left)?, f64::try_from(right)?);
    if b == 0.0 {
        return Err(refuse("modulo by zero"));
    }
    let rest = a % b;
    Ok(if rest != 0.0 && (rest < 0.0) != (b < 0.0) { rest + b } else { rest }.into())
}

/// jinja2's `format` filter: the values as arguments.
pub(super) fn filter(text: &JinjaValue, given: Rest<JinjaValue>, named: Kwargs) -> Result<String> {
    let text = super::str(text);
    let is_named = named.args().next().is_some();
    match (is_named, given.is_empty()) {
        (true, true) => format(&text, &JinjaValue::from(named)),
        (true, false) => Err(refuse("positional and keyword arguments cannot go together")),
        (false, _) => format(&text, &Tuple::from(given.0).into()),
    }
}

/// One conversion: `%-08.3f`.
#[derive(Default)]
struct Spec {
    minus: bool,
    plus: bool,
    space: bool,
    zero: bool,
    sharp: bool,
    width: usize,
    precision: Option<usize>,
}

struct Values<'a> {
    right: &'a JinjaValue,
    items: std::vec::IntoIter<JinjaValue>,
}

impl Values<'_> {
    fn next(&mut self) -> Result<JinjaValue> {
        self.items.next().ok_or_else(|| refuse("not enough arguments for format string"))
    }
}

fn format(text: &str, right: &JinjaValue) -> Result<String> {
    let tuple = right.downcast_object_ref::<Tuple>();
    let items = tuple.map_or_else(|| vec![right.clone()], |tuple| tuple.to_vec());
    let mut values = Values { right, items: items.into_iter() };
    let mut by_key = false;
    let mut out = String::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut key = None;
        if chars.next_if_eq(&'(').is_some() {
            let name: String = chars.by_ref().take_while(|&c| c != ')').collect();
            if right.kind() != ValueKind::Map {
                return Err(refuse("format requires a mapping"));
            }
            by_key = true;
            let value = right.get_attr(&name)?;
            if value.is_undefined() {
                return Err(refuse(format!("there is no key {name}")));
            }
            key = Some(value);
        }
        let mut spec = Spec::default();
        while let Some(flag) = chars.next_if(|c| "-+ 0#".contains(*c)) {
            match flag {
                '-' => spec.minus = true,
                '+' => spec.plus = true,
                ' ' => spec.space = true,
                '0' => spec.zero = true,
                _ => spec.sharp = true,
            }
        }
        let mut count = |values: &mut Values| -> Result<Option<usize>> {
            if chars.next_if_eq(&'*').is_some() {
                let width = i64::try_from(values.next()?)?;
                spec.minus |= width < 0;
                return Ok(usize::try_from(width.unsigned_abs()).ok());
            }
            let mut digits = String::new();
            while let Some(digit) = chars.next_if(char::is_ascii_digit) {
                digits.push(digit);
            }
            Ok(digits.parse().ok())
        };
        let width = count(&mut values)?.unwrap_or(0);
        spec.width = width.min(1 << 20);
        if chars.next_if_eq(&'.').is_some() {
            let mut digits = String::new();
            if chars.next_if_eq(&'*').is_some() {
                digits = i64::try_from(values.next()?)?.max(0).to_string();
            }
            while let Some(digit) = chars.next_if(char::is_ascii_digit) {
                digits.push(digit);
            }
            spec.precision = Some(digits.parse().unwrap_or(0).min(1 << 10));
        }
        while chars.next_if(|c| "hlL".contains(*c)).is_some() {}
        let Some(kind) = chars.next() else { return Err(refuse("incomplete format")) };
        if kind == '%' {
            out.push('%');
            continue;
        }
        let value = match key {
            Some(value) => value,
            None => values.next()?,
        };
        out.push_str(&spec.convert(kind, &value)?);
    }
    let left_over = values.items.len() > 0;
    if left_over && !by_key && values.right.kind() != ValueKind::Map {
        return Err(refuse("not all arguments converted during string formatting"));
    }
    Ok(out)
}

impl Spec {
    fn convert(&self, kind: char, value: &JinjaValue) -> Result<String> {
        let cut = |text: String| match self.precision {
            Some(most) => text.chars().take(most).collect(),
            None => text,
        };
        match kind {
            's' => Ok(self.padded("", &cut(super::str(value)), false)),
            'r' => Ok(self.padded("", &cut(repr(value)), false)),
            'a' => Ok(self.padded("", &cut(super::ascii(value)), false)),
            'c' => {
                let text = match value.as_str() {
                    Some(text) if text.chars().count() == 1 => text.to_owned(),
                    Some(_) => return Err(refuse("%c requires an int or a character")),
                    None => char::from_u32(u32::try_from(value.clone())?)
                        .ok_or_else(|| refuse("%c takes a character's number"))?
                        .to_string(),
                };
                Ok(self.padded("", &text, false))
            }
            'd' | 'i' | 'u' | 'x' | 'X' | 'o' => self.integer(kind, value),
            'e' | 'E' | 'f' | 'F' | 'g' | 'G' => self.float(kind, value),
            _ => Err(refuse(format!("unsupported format character '{kind}'"))),
        }
    }

    fn integer(&self, kind: char, value: &JinjaValue) -> Result<String> {
        let float = |value: &JinjaValue| f64::try_from(value.clone());
        let number: i128 = match value.kind() {
            ValueKind::Bool => i128::from(value.is_true()),
            ValueKind::Number if value.is_integer() => i128::try_from(value.clone())?,
            ValueKind::Number if "diu".contains(kind) => float(value)?.trunc() as i128,
            _ => return Err(refuse(format!("%{kind} format: a number is required"))),
        };
        let size = number.unsigned_abs();
        let (prefix, digits) = match kind {
            'x' => ("0x", format!("{size:x}")),
            'X' => ("0X", format!("{size:X}")),
            'o' => ("0o", format!("{size:o}")),
            _ => ("", size.to_string()),
        };
        let digits = format!("{digits:0>width$}", width = self.precision.unwrap_or(0));
        let prefix = if self.sharp { prefix } else { "" };
        Ok(self.padded(&format!("{}{prefix}", self.sign(number < 0)), &digits, true))
    }

    fn float(&self, kind: char, value: &JinjaValue) -> Result<String> {
        let number = match value.kind() {
            ValueKind::Bool => f64::from(u8::from(value.is_true())),
            ValueKind::Number => f64::try_from(value.clone())?,
            _ => return Err(refuse("must be real number")),
        };
        let precision = self.precision.unwrap_or(6);
        let size = number.abs();
        let text = match kind.to_ascii_lowercase() {
            _ if !size.is_finite() => float_text(size),
            'f' => format!("{size:.precision$}"),
            'e' => with_exponent(&format!("{size:.precision$e}")),
            _ => general(size, precision.max(1)),
        };
        let text = if kind.is_ascii_uppercase() { text.to_uppercase() } else { text };
        Ok(self.padded(&self.sign(number.is_sign_negative()), &text, size.is_finite()))
    }

    fn sign(&self, negative: bool) -> String {
        match (negative, self.plus, self.space) {
            (true, ..) => "-".into(),
            (_, true, _) => "+".into(),
            (.., true) => " ".into(),
            _ => String::new(),
        }
    }

    fn padded(&self, sign: &str, text: &str, number: bool) -> String {
        let missing = self.width.saturating_sub(sign.chars().count() + text.chars().count());
        let (spaces, zeros) = (" ".repeat(missing), "0".repeat(missing));
        match (self.minus, self.zero && number) {
            (true, _) => format!("{sign}{text}{spaces}"),
            (_, true) => format!("{sign}{zeros}{text}"),
            _ => format!("{spaces}{sign}{text}"),
        }
    }
}

/// `%g`: so many digits that mean something, with an exponent where that is shorter.
fn general(number: f64, precision: usize) -> String {
    let scientific = format!("{number:.*e}", precision - 1);
    let exponent: i64 = scientific.split_once('e').and_then(|(_, e)| e.parse().ok()).unwrap_or(0);
    let trimmed = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if exponent < -4 || exponent >= precision as i64 {
        let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
        return with_exponent(&format!("{}e{exponent}", trimmed(digits)));
    }
    let decimals = usize::try_from(precision as i64 - 1 - exponent).unwrap_or(0);
    trimmed(&format!("{number:.decimals$}"))
}
