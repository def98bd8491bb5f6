//! Macros that take more arguments than they have parameters for: `varargs` and `kwargs`.

use std::sync::Arc;

use minijinja::State;
use minijinja::value::{Kwargs, Object, ObjectRepr, Rest, Tuple, Value as JinjaValue, from_args};

use super::{Result, refuse};

/// The filter that makes one of a macro whose last parameters are `varargs`, `kwargs`, or both.
pub(in crate::chat) const GATHER: &str = "__gather__";

/// A macro that gathers what it has no parameter for.
#[derive(Debug)]
struct Gathering {
    inner: JinjaValue,
    /// Its parameters proper.
    names: Vec<String>,
    varargs: bool,
    kwargs: bool,
}

/// Makes one of a macro.
pub(super) fn gather(inner: &JinjaValue) -> Result<JinjaValue> {
    let names = inner.get_attr("arguments")?.try_iter()?;
    let mut names: Vec<String> =
        names.filter_map(|name| name.as_str().map(str::to_owned)).collect();
    let mut takes = |further: &str| {
        let last = names.last().is_some_and(|name| name == further);
        if last {
            names.pop();
        }
        last
    };
    let kwargs = takes("kwargs");
    let varargs = takes("varargs");
    Ok(JinjaValue::from_object(Gathering { inner: inner.clone(), names, varargs, kwargs }))
}

impl Object for Gathering {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &JinjaValue) -> Option<JinjaValue> {
        match key.as_str()? {
            "arguments" => {
                let names: Vec<JinjaValue> = self.names.iter().map(JinjaValue::from).collect();
                Some(Tuple::from(names).into())
            }
            "catch_varargs" => Some(self.varargs.into()),
            "catch_kwargs" => Some(self.kwargs.into()),
            name => self.inner.get_attr(name).ok().filter(|value| !value.is_undefined()),
        }
    }

    fn call(self: &Arc<Self>, state: &mut State, args: &[JinjaValue]) -> Result<JinjaValue> {
        let (given, named): (Rest<JinjaValue>, Kwargs) = from_args(args)?;
        let mut given = given.0;
        let more = given.split_off(given.len().min(self.names.len()));
        if !more.is_empty() && !self.varargs {
            return Err(refuse("the macro takes no more arguments"));
        }
        let mut own = Vec::new();
        let mut others = indexmap::IndexMap::new();
        let calls = self.inner.get_attr("caller").is_ok_and(|caller| caller.is_true());
        for name in named.args() {
            let value: JinjaValue = named.get(name)?;
            if self.names.iter().any(|known| known == name) || (calls && name == "caller") {
                own.push((name.to_owned(), value));
            } else if self.kwargs {
                others.insert(JinjaValue::from(name), value);
            } else {
                return Err(refuse(format!("the macro takes no argument {name:?}")));
            }
        }
        if self.varargs {
            own.push(("varargs".into(), Tuple::from(more).into()));
        }
        if self.kwargs {
            own.push(("kwargs".into(), JinjaValue::from_object(others)));
        }
        given.push(own.into_iter().collect::<Kwargs>().into());
        self.inner.call(state, &given)
    }
}
