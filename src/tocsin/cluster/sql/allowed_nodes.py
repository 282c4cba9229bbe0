"""The nodes that Spark's plans of a channel query may have: each is the name of a class of Spark without its package.

A node that is not listed is refused, so a new version of Spark adds nothing by itself. The lists were collected from
Spark's plans of a query for each clause of Spark SQL and of the examples of every allowed function; a test does that
again. Only data: `cluster.spark.query_check` compares plans with it.
"""

from __future__ import annotations

PACKAGES = frozenset(
    f"org.apache.spark.sql.catalyst.{package}"
    for package in ("analysis", "expressions", "expressions.aggregate", "expressions.variant", "plans.logical")
)
"""A class of another package is known by its full name only."""

_PARSED_PLANS = """
    Aggregate Distinct Except Filter Generate GlobalLimit Intersect Join LateralJoin LimitAll LocalLimit
    LocalRelation Offset OneRowRelation Pivot Project RepartitionByExpression Sort SubqueryAlias Union Unpivot
    UnresolvedHint UnresolvedWith WithWindowDefinition"""
_PARSED_NAMES = """
    MultiAlias UnresolvedAlias UnresolvedAttribute UnresolvedExtractValue UnresolvedHaving UnresolvedInlineTable
    UnresolvedOrdinal UnresolvedQualify UnresolvedStar UnresolvedStarExceptOrReplace UnresolvedSubqueryColumnAliases
    UnresolvedTVFAliases"""
_PARSED_EXPRESSIONS = """
    Add AggregateExpression Alias And AnyValue AttributeReference BitwiseAnd BitwiseNot BitwiseOr BitwiseXor
    CaseKeyWhen CaseWhen Cast Coalesce Collate Concat CreateNamedStruct Cube CurrentRow$ Divide EqualNullSafe
    EqualTo Exists First GreaterThan GreaterThanOrEqual GroupingSets ILike In InSubquery IntegralDivide IsNotNull
    IsNull LambdaFunction Last LateralSubquery LessThan LessThanOrEqual Like LikeAll LikeAny ListQuery Literal Lower
    Multiply NamePlaceholder$ NamedArgumentExpression Not NotLikeAll NotLikeAny Or Overlay PipeExpression
    PipeOperator RLike RangeFrame$ Remainder Rollup RowFrame$ ScalarSubquery SemiStructuredExtract ShiftLeft
    ShiftRight ShiftRightUnsigned SortOrder SpecifiedWindowFrame StringLocate StringTrim StringTrimLeft
    StringTrimRight Substring Subtract TimestampAdd TimestampDiff UnaryMinus UnaryPositive UnboundedFollowing$
    UnboundedPreceding$ UnresolvedCollation UnresolvedNamedLambdaVariable UnresolvedWindowExpression
    UnspecifiedFrame$ Upper WindowExpression WindowSpecDefinition WindowSpecReference"""

PARSED_NODES = frozenset(f"{_PARSED_PLANS} {_PARSED_NAMES} {_PARSED_EXPRESSIONS}".split())
"""Besides unresolved functions and relations, which are checked by their names."""

_ANALYSED_PLANS = """
    Aggregate CTERelationDef CTERelationRef Distinct EmptyRelation Except Expand Filter Generate GlobalLimit
    Intersect Join LateralJoin LocalLimit LocalRelation Offset OneRowRelation Project Range RebalancePartitions
    Repartition RepartitionByExpression ResolvedHint Sort SubqueryAlias Union UnionLoop UnionLoopRef Window WithCTE"""
_EXPRESSIONS = """
    Abs Acos Acosh Add AddMonths AesDecrypt Alias And ArrayAggregate ArrayAppend ArrayCompact ArrayContains
    ArrayDistinct ArrayExcept ArrayExists ArrayFilter ArrayForAll ArrayInsert ArrayIntersect ArrayJoin ArrayMax
    ArrayMin ArrayPosition ArrayPrepend ArrayRemove ArrayRepeat ArraySize ArraySort ArrayTransform ArrayUnion
    ArraysOverlap ArraysZip Ascii Asin Asinh Atan Atan2 Atanh AttributeReference BRound Base32 Base64 Between Bin
    BinaryPad BinaryPredicate BitLength BitwiseAnd BitwiseCount BitwiseGet BitwiseNot BitwiseOr BitwiseXor CaseWhen
    Cast Cbrt Ceil Chr Coalesce Collate Collation CommonExpressionDef CommonExpressionRef Concat ConcatWs Contains
    Conv ConvertTimezone Cos Cosh Cot CounterDiff CounterDiffWithStartTime Crc32 CreateArray CreateMap
    CreateNamedStruct Csc CsvToStructs CumeDist CurrentDate CurrentRow$ CurrentTimeZone CurrentTimestamp DateAdd
    DateAddInterval DateAddYMInterval DateDiff DateFormatClass DateFromUnixDate DateSub DatetimeSub DayName
    DayOfMonth DayOfWeek DayOfYear Decode DenseRank Divide DivideDTInterval DivideInterval DivideYMInterval
    ElementAt Elt Encode EndsWith EqualNull EqualNullSafe EqualTo EulerNumber Exists Exp Explode Expm1 Extract
    ExtractANSIIntervalDays ExtractANSIIntervalHours ExtractANSIIntervalMinutes ExtractANSIIntervalMonths
    ExtractANSIIntervalSeconds ExtractANSIIntervalYears ExtractIntervalDays ExtractIntervalHours
    ExtractIntervalMinutes ExtractIntervalMonths ExtractIntervalSeconds ExtractIntervalYears Factorial FindInSet
    Flatten Floor FormatNumber FormatString FromUTCTimestamp FromUnixTime GeneratorOuter Get GetArrayItem
    GetArrayStructFields GetJsonObject GetMapValue GetStructField GreaterThan GreaterThanOrEqual Greatest Grouping
    GroupingID Hex Hmac Hour Hypot ILike If In InSubquery InitCap Inline IntegralDivide IsNaN IsNotNull IsNotUnknown
    IsNull IsUnknown IsValidUTF8 JaroWinkler JsonObjectKeys JsonToStructs JsonTuple KnownNullable Lag LambdaFunction
    LastDay LateralSubquery Lead Least Left Length LengthOfJsonArray LessThan LessThanOrEqual Levenshtein Like
    LikeAll LikeAny ListQuery Literal LocalTimestamp Log Log10 Log1p Log2 Logarithm Lower Luhncheck MakeDTInterval
    MakeDate MakeInterval MakeTimestamp MakeTimestampFromDateTime MakeTimestampLTZ MakeTimestampNTZ MakeValidUTF8
    MakeYMInterval MapConcat MapContainsKey MapEntries MapFilter MapFromArrays MapFromEntries MapKeys MapValues
    MapZipWith Mask Md5 MicrosToTimestamp MillisToTimestamp Minute Month MonthName MonthsBetween Multiply
    MultiplyDTInterval MultiplyInterval MultiplyYMInterval Murmur3Hash NTile NaNvl NamedLambdaVariable NextDay Not
    NotLikeAll NotLikeAny Now NthValue NullIf NullIfResult NullIfZero Nvl Nvl2 OctetLength Or OuterReference Overlay
    ParseToDate ParseToTimestamp ParseUrl PercentRank Pi PipeOperator Pmod PosExplode Pow PreciseTimestampConversion
    Quarter Quote RLike Rank RegExpCount RegExpExtract RegExpExtractAll RegExpInStr RegExpReplace RegExpSubStr
    Remainder ResolvedCollation Reverse Right Rint Round RoundCeil RoundFloor RowNumber ScalarSubquery SchemaOfCsv
    SchemaOfJson Sec Second SecondWithFraction SecondsToTimestamp Sentences Sequence Sha1 Sha2 ShiftLeft ShiftRight
    ShiftRightUnsigned Signum Sin Sinh Size Slice SortArray SortOrder SoundEx SpecifiedWindowFrame SplitPart Sqrt
    Stack StartsWith StringDecode StringInstr StringInstrWithOccurrence StringLPad StringLocate StringRPad
    StringRepeat StringReplace StringSpace StringSplit StringToMap StringTranslate StringTrim StringTrimBoth
    StringTrimLeft StringTrimRight StructsToCsv StructsToJson Substring SubstringIndex Subtract SubtractDates
    SubtractTimestamps Tan Tanh TimeBucket TimestampAdd TimestampAddInterval TimestampAddYMInterval TimestampDiff
    ToBinary ToCharacter ToDegrees ToNumber ToRadians ToUTCTimestamp ToUnixTimestamp TransformKeys TransformValues
    TruncDate TruncTimestamp TryAdd TryAesDecrypt TryDivide TryElementAt TryEval TryMakeInterval TryMakeTimestamp
    TryMakeTimestampFromDateTime TryMod TryMultiply TryParseUrl TrySubtract TryToBinary TryToNumber TryUrlDecode
    TryValidateUTF8 TypeOf UnBase32 UnBase64 UnaryMinus UnaryPositive UnboundedFollowing$ UnboundedPreceding$ Unhex
    UnixDate UnixMicros UnixMillis UnixSeconds UnixTimestamp Upper UrlDecode UrlEncode ValidateUTF8 VectorAvg
    VectorCosineSimilarity VectorInnerProduct VectorL2Distance VectorNorm VectorNormalize VectorSum WeekDay
    WeekOfYear WidthBucket WindowExpression WindowSpecDefinition WindowTime With XxHash64 Year YearOfWeek ZeroIfNull
    ZipWith"""
_AGGREGATES = """
    AggregateExpression AnyValue ApproxTopK ApproximatePercentile Average BitAndAgg BitOrAgg BitXorAgg BoolAnd
    BoolOr CollectList CollectSet CollectUnion Corr Count CountIf CovPopulation CovSample First HistogramNumeric
    HyperLogLogPlusPlus Kurtosis Last ListAgg Max MaxBy MaxMinByK Median Min MinBy Mode Percentile PercentileCont
    PercentileDisc PivotFirst RegrAvgX RegrAvgY RegrCount RegrIntercept RegrR2 RegrSXX RegrSXY RegrSYY RegrSlope
    Skewness StddevPop StddevSamp Sum VariancePop VarianceSamp"""
_VARIANTS = """
    IsValidVariant IsVariantNull ParseJson SchemaOfVariant SchemaOfVariantAgg ToVariantObject VariantArrayAppend
    VariantDelete VariantExplode VariantGet VariantInsert VariantSet VariantStripNulls"""

ANALYSED_NODES = frozenset(f"{_ANALYSED_PLANS} {_EXPRESSIONS} {_AGGREGATES} {_VARIANTS}".split())
"""Besides views, which are checked by their names."""

VIEW_LEAVES = frozenset({
    "org.apache.spark.sql.execution.LogicalRDD",
    "org.apache.spark.sql.execution.datasources.LogicalRelation",
    "org.apache.spark.sql.execution.datasources.LogicalRelationWithTable",
})  # fmt: skip
"""Nodes that read data. Allowed in the channel's own views only."""

_COMPUTED_NAME = "a channel names its datasets and functions in plain text: IDENTIFIER(…) is not allowed"
_SERVER = "a channel may not ask about the server: use a parameter for the subscriber"

REFUSED_NODES = {
    "ScriptTransformation": "TRANSFORM is not allowed in a channel: it runs code outside Spark SQL",
    "Sample": "TABLESAMPLE is not allowed in a channel: an execution that is repeated would give other results",
    "RelationTimeTravel": "a channel reads a dataset as of now: VERSION and TIMESTAMP AS OF are not allowed",
    "NamedStreamingRelation": "STREAM is not allowed in a channel: NEW reads the records that arrived",
    "ExpressionWithUnresolvedIdentifier": _COMPUTED_NAME,
    "PlanWithUnresolvedIdentifier": _COMPUTED_NAME,
    "FunctionTableSubqueryArgumentExpression": "TABLE(…) as an argument is not allowed in a channel: join the datasets",
    "CompoundBody": "a channel is one query: BEGIN … END is not allowed",
    **dict.fromkeys(("CurrentUser", "CurrentCatalog", "CurrentDatabase", "CurrentPath", "SparkVersion"), _SERVER),
    **dict.fromkeys(
        ("CallMethodViaReflection", "TryReflect"), "reflect is not allowed: it runs code outside Spark SQL"
    ),
    **dict.fromkeys(("PythonUDF", "ScalaUDF", "PythonUDTF"), "a channel may not call functions of a program"),
    **dict.fromkeys(("Rand", "Randn", "Uuid", "Shuffle", "RandStr", "Uniform"), "random functions are not allowed"),
    "VariableReference": "a channel has parameters instead of session variables: expected :name",
    "org.apache.spark.sql.execution.datasources.LogicalRelation": "a channel reads declared datasets only",
}
"""Messages for some of the nodes that are not listed above."""
