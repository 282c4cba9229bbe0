"""The functions that a channel query may call, and the reason for each function of Spark that it may not call.

This is the only list. A function is allowed if its value depends on its arguments alone: the same records must give the
same results, however often Spark retries a task, and a query must not read, run or learn anything outside its datasets.
A function that neither list names is refused too, so a new version of Spark adds nothing by itself; a test compares
both lists with Spark's registry. Only data and two questions about it: `query_scan` checks the text of a query,
`cluster.spark.query_check` checks Spark's plan of it, and `cluster.spark.session` removes some of the refused functions
from Spark altogether.
"""

from __future__ import annotations

from tocsin.cluster.sql.problems import did_you_mean

_AGGREGATES = """
    any any_value approx_count_distinct approx_percentile approx_top_k array_agg avg bit_and bit_or bit_xor bool_and
    bool_or collect_list collect_set collect_union corr count count_if covar_pop covar_samp every first first_value
    grouping grouping_id histogram_numeric kurtosis last last_value listagg max max_by mean median min min_by mode
    percentile percentile_approx percentile_cont percentile_disc regr_avgx regr_avgy regr_count regr_intercept
    regr_r2 regr_slope regr_sxx regr_sxy regr_syy skewness some std stddev stddev_pop stddev_samp string_agg sum
    try_avg try_sum var_pop var_samp variance"""
_WINDOWS = "counter_diff cume_dist dense_rank lag lead nth_value ntile percent_rank rank row_number"
_ARRAYS_AND_MAPS = """
    aggregate array array_append array_compact array_contains array_distinct array_except array_insert array_intersect
    array_join array_max array_min array_position array_prepend array_remove array_repeat array_size array_sort
    array_union arrays_overlap arrays_zip cardinality concat element_at exists explode explode_outer filter flatten
    forall get inline inline_outer map map_concat map_contains_key map_entries map_filter map_from_arrays
    map_from_entries map_keys map_values map_zip_with named_struct posexplode posexplode_outer range reduce reverse
    sequence size slice sort_array stack str_to_map struct transform transform_keys transform_values try_element_at
    vector_avg vector_cosine_similarity vector_inner_product vector_l2_distance vector_norm vector_normalize
    vector_sum zip_with"""
_CONDITIONS = """
    and between coalesce equal_null if ifnull ilike in isnan isnotnull isnull like nanvl not nullif nullifzero nvl nvl2
    or regexp regexp_like rlike when zeroifnull"""
_CONVERSIONS = """
    bigint binary boolean cast date decimal double float int smallint string timestamp tinyint try_cast typeof"""
_DATES = """
    add_months convert_timezone curdate current_date current_timestamp current_timezone date_add date_diff date_format
    date_from_unix_date date_part date_sub date_trunc dateadd datediff datepart day dayname dayofmonth dayofweek
    dayofyear extract from_unixtime from_utc_timestamp hour last_day localtimestamp make_date make_dt_interval
    make_interval make_timestamp make_timestamp_ltz make_timestamp_ntz make_ym_interval minute month monthname
    months_between next_day now quarter second session_window time_bucket timestamp_micros timestamp_millis
    timestamp_seconds timestampadd timestampdiff to_date to_timestamp to_timestamp_ltz to_timestamp_ntz
    to_unix_timestamp to_utc_timestamp trunc try_make_interval try_make_timestamp try_make_timestamp_ltz
    try_make_timestamp_ntz try_to_date try_to_timestamp unix_date unix_micros unix_millis unix_seconds unix_timestamp
    weekday weekofyear window window_time year"""
_FORMATS = """
    from_csv from_json get_json_object is_valid_variant is_variant_null json_array_length json_object_keys json_tuple
    parse_json parse_url schema_of_csv schema_of_json schema_of_variant schema_of_variant_agg to_csv to_json
    to_variant_object try_parse_json try_parse_url try_url_decode try_variant_array_append try_variant_get
    try_variant_insert try_variant_set url_decode url_encode variant_array_append variant_delete variant_explode
    variant_explode_outer variant_get variant_insert variant_set variant_strip_nulls"""
_NUMBERS = """
    abs acos acosh asin asinh atan atan2 atanh bin bit_count bit_get bround cbrt ceil ceiling conv cos cosh cot csc
    degrees div e exp expm1 factorial floor getbit greatest hex hypot least ln log log10 log1p log2 mod negative pi pmod
    positive pow power radians rint round sec shiftleft shiftright shiftrightunsigned sign signum sin sinh sqrt tan tanh
    try_add try_divide try_mod try_multiply try_subtract unhex width_bucket"""
_STRINGS = """
    aes_decrypt ascii base64 bit_length btrim char char_length character_length chr collate collation concat_ws contains
    crc32 decode elt encode endswith find_in_set format_number format_string from_base32 hash hmac initcap instr
    is_valid_utf8 jaro_winkler_similarity lcase left len length levenshtein locate lower lpad ltrim luhn_check
    make_valid_utf8 mask md5 octet_length overlay position printf quote regexp_count regexp_extract regexp_extract_all
    regexp_instr regexp_replace regexp_substr repeat replace right rpad rtrim sentences sha sha1 sha2 soundex space
    split split_part startswith substr substring substring_index to_base32 to_binary to_char to_number to_varchar
    translate trim try_aes_decrypt try_to_binary try_to_number try_validate_utf8 ucase unbase64 upper validate_utf8
    xxhash64"""
_OPERATORS = "! % & * + - / < << <= <=> = == > >= >> >>> ^ | ~"

_GROUPS = (_AGGREGATES, _WINDOWS, _ARRAYS_AND_MAPS, _CONDITIONS, _CONVERSIONS, _DATES, _FORMATS, _NUMBERS, _STRINGS)
ALLOWED_FUNCTIONS = frozenset(f"{' '.join(_GROUPS)} {_OPERATORS}".split())
"""Names in lower case, as Spark's plan has them."""

_NOT_DETERMINISTIC = "its value differs from call to call, so an execution that is repeated would give other results"
_DEPENDS_ON_SPLITS = (
    "its value depends on how Spark splits the data, so an execution that is repeated would give other results"
)
_READS_OUTSIDE = "a channel reads declared datasets only"
_RUNS_CODE = "it runs code outside Spark SQL"
_RAISES = "one subscription's failure would stop the channel for all of them"
_COMPUTES_NAME = "it names a table or a function by a computed text"
_SHOWS_SERVER = "it tells about the server, not about the records; use a parameter for the subscriber"
_NAMES_FILES = "its options can name a file or an address for the server to read; use from_json"
_XML = "an XML parser follows references in the text that it reads; publish the fields as JSON"
_BINARY = "it trusts a binary text of Spark's own format; use count, approx_count_distinct or percentile"
_NO_TYPE = "it needs the types TIME or nanosecond timestamps, which datasets do not have; use a TIMESTAMP"
_NO_MEANING = "it has no meaning for records of a dataset"

_REFUSED_FOR = {
    _NOT_DETERMINISTIC: "aes_encrypt rand randn random randstr shuffle uniform uuid",
    _DEPENDS_ON_SPLITS: """
        input_file_block_length input_file_block_start input_file_name monotonically_increasing_id
        spark_partition_id""",
    _READS_OUTSIDE: """
        cloud_files python_worker_logs read_files read_kafka read_kinesis read_pubsub read_statestore remote_query
        stream table table_changes""",
    _RUNS_CODE: "java_method reflect try_reflect",
    _RAISES: "assert_true raise_error",
    _COMPUTES_NAME: "identifier",
    _SHOWS_SERVER: """
        current_catalog current_database current_path current_schema current_user session_user user version""",
    _NAMES_FILES: "from_avro from_protobuf schema_of_avro to_avro to_protobuf",
    _XML: "from_xml schema_of_xml to_xml xpath",
    _BINARY: "count_min_sketch",
    _NO_TYPE: "current_time localtime make_time time timestamp_nanos to_time try_to_time unix_nanos",
    _NO_MEANING: "collations measure sql_keywords",
}
REFUSED_FUNCTIONS = {name: reason for reason, names in _REFUSED_FOR.items() for name in names.split()}
"""Names in lower case, each with the reason."""

_REFUSED_PREFIXES = {
    "xpath_": _XML,
    **dict.fromkeys(("approx_top_k_", "bitmap_", "hll_", "kll_", "theta_", "tuple_"), _BINARY),
    **dict.fromkeys(("time_diff", "time_from_", "time_to_", "time_trunc"), _NO_TYPE),
    "st_": "Spark's geometries cannot be columns of a dataset; use near and distance_m",
}
"""Families of functions that have the same reason."""

REMOVED_FUNCTIONS = tuple(
    " ".join((_REFUSED_FOR[_RUNS_CODE], _REFUSED_FOR[_NAMES_FILES], _REFUSED_FOR[_XML], "input_file_name")).split()
)
"""Functions that run code or name files: Spark itself forgets them. The other checks do not depend on that."""


def reason_to_refuse(name: str) -> str | None:
    """The reason if the function is on the list of refused functions; None if it is not, also if it is unknown."""
    lower = name.lower()
    if lower in ALLOWED_FUNCTIONS:
        return None
    families = (reason for prefix, reason in _REFUSED_PREFIXES.items() if lower.startswith(prefix))
    return REFUSED_FUNCTIONS.get(lower) or next(families, None)


def refusal_of(name: str) -> str | None:
    """The message for the author if a channel may not call this function, or None if it may."""
    if name.lower() in ALLOWED_FUNCTIONS:
        return None
    reason = reason_to_refuse(name)
    if reason is not None:
        return f"{name} is not allowed in a channel: {reason}"
    hint = did_you_mean(name, (*ALLOWED_FUNCTIONS, "near", "distance_m"))
    return f"{name} is not a function that a channel may call{hint or '; docs/application-sql.md lists the functions'}"
