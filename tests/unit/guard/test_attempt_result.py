from policies.classes import BIT, masks_of, names_of
from serve.guard.attempt_result import request_class


def test_a_request_class_is_what_an_answer_may_break_by_as_an_expression_that_the_policy_reads() -> None:
    classes = names_of(BIT["tools_auto"] | BIT["json_schema"] | BIT["strict"] | BIT["stream"])
    label = request_class(classes)
    assert label == "tools_auto+json_schema+strict"
    assert masks_of(label) == (BIT["tools_auto"] | BIT["json_schema"] | BIT["strict"],)
