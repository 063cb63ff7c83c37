"""The tables of cases by API, as `--api` names it: chat completions, and those that a gateway translates to them."""

from lab.conform.apis import APIS
from lab.conform.case import Case
from lab.conform.cases import CASES
from lab.conform.cases.apis import answers, calls, failures, requests
from lab.conform.cases.apis.asking import cases_of
from lab.conform.cases.apis.own import OWN_CASES

_ROWS = (*requests.CASES, *answers.CASES, *calls.CASES, *failures.CASES)

API_CASES: dict[str, tuple[Case, ...]] = {
    "chat": CASES,
    **{api.name: cases_of(api, (*_ROWS, *OWN_CASES[api.name])) for api in APIS},
}
