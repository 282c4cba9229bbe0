select a, count(*) c, sum(distinct b) filter (where b > 1) from t group by a having count(*) > 1 order by a limit 3
select a, b, grouping(a), grouping_id() from t group by grouping sets ((a),(a,b),())
select a, b, sum(b) from t group by rollup(a, b)
select a, b, sum(b) from t group by cube(a, b)
select a, sum(b) from t group by all
select * from t unpivot (x for y in (b, c))
select * from (select a, b from t) pivot (sum(b) for a in ('x' as p, 'y'))
select * from t lateral view explode(arr) x as y
select * from t lateral view outer posexplode(arr) x as p, y
select a, y from t, lateral (select t.b + 1 as y)
select a, y from t cross join lateral explode(arr) as x(y)
select t.a from t left join u on t.b = u.b where u.b is null
select a from t left semi join u using (b)
select a from t left anti join u on t.b <=> u.b
select * from (select a, b from t) natural join (select a, c from u)
select t.a from t full outer join u using (b)
select a from t where b in (select b from u) and b not in (1,2,3) and exists (select 1 from u where u.b = t.b)
select (select max(b) from u) m, a from t
select a from t union all select a from t union select a from t
select a from t intersect select a from t except select a from t
with x as (select * from t), y(p) as (select a from x) select * from y, x
with recursive r(n) as (select 1 union all select n+1 from r where n < 5) select * from r
select a, row_number() over (partition by a order by b desc nulls last), sum(b) over (order by b rows between 1 preceding and unbounded following), sum(b) over (order by b rows between 1 preceding and 1 following), max(b) over (order by d range between interval '1' day preceding and current row), count(*) over (order by b rows unbounded preceding) from t
with y as (select sum(b) over w as z, lag(b) over w as v from t window w as (partition by a order by b)) select * from y
select sum(b) over w, lag(b, 1) over w from t window w as (partition by a order by b)
select a from t qualify row_number() over (partition by a order by b) = 1
select case a when 'x' then 1 when 'y' then 2 else 3 end, if(b > 1, 2, 3), coalesce(a, 'x'), nullif(b, 1) from t
select a like 'x%' escape '!', a ilike 'x', a rlike 'x', a like any ('x','y'), a like all ('x','y'), a not like 'z', a ilike any ('x'), a not like all ('x', a) from t
select b between 1 and 3, b is null, b is not null, b is true, not b is distinct from 3, - b, + b, ~b, b & 1 | 2 ^ 3, b % 2, b div 2, b / 2, b << 1, b >> 1, b >>> 1, a || 'x' from t
select cast(a as int), try_cast(a as date), a::double, b::decimal(10,2), cast(d as date), cast(arr as array<string>), cast(named_struct('x', 1) as struct<x:bigint>) from t
select arr[0], m['k'], s.x, s.*, struct(*), named_struct('a', 1).a, element_at(arr, 1), size(arr), arr[b] from t
select transform(arr, x -> x + b), filter(arr, x -> x > 1), aggregate(arr, 0, (acc, x) -> acc + x, acc -> acc * 2), exists(arr, x -> x = 1), zip_with(arr, arr, (x, y) -> x + y), map_filter(m, (k, v) -> k = 'a'), array_sort(arr, (l, r) -> l - r), transform_keys(m, (k, v) -> k), transform(arr, (x, i) -> x + i) from t
select extract(day from d), date_part('month', d), d + interval 1 day, d - d, interval '1' year, date '2020-01-01', timestamp '2020-01-01 00:00:00', d - interval '2' hour, current_date, current_timestamp, current_date(), now(), date_add(d, 1), timestampadd(hour, 1, d), timestampdiff(hour, d, d), datediff(day, d, d), dateadd(day, 1, d), date_trunc('hour', d), cast(d as date) - cast(d as date), d > '2020-01-01', make_interval(1), interval 3 days * 2, interval 3 days / 2, months_between(d, d), localtimestamp() from t
select trim(both 'x' from a), trim(leading from a), trim('x' from a), position('a' in a), substring(a from 1 for 2), overlay(a placing 'b' from 1 for 2), left(a, 1), a collate utf8_lcase, collation(a), replace(a, 'x'), split(a, ','), decode(a, 'x', 1, 2), format_number(b, 2) from t
select percentile_cont(0.5) within group (order by b), listagg(a, ',') within group (order by a), mode() within group (order by b), median(b), approx_percentile(b, 0.5), collect_list(a), max_by(a, b), any_value(a) ignore nulls, first(a) ignore nulls, last(a) respect nulls, array_agg(distinct a), count(distinct a, b), every(b > 1), string_agg(a, ';'), corr(b, c), try_sum(b), stddev(b) from t
select * except (a) from t
select t.* from t, (values (1, 'x'), (2, 'y')) as v(k, w) where v.k = t.b
select inline(array(struct(1, 'a'))), a from t
select stack(2, 1, 2, 3, 4), a from t
select explode(arr) as e, a from t
select json_tuple(a, 'x', 'y') from t
select * from range(10) r, t
select * from explode(array(1,2)) x
select a, window(d, '10 minutes'), count(*) from t group by a, window(d, '10 minutes')
select a, window(d, '10 minutes', '5 minutes').start as s, count(*) from t group by a, window(d, '10 minutes', '5 minutes')
select a, session_window(d, '10 minutes') as w, count(*) from t group by a, session_window(d, '10 minutes')
select a from t order by b desc limit 3 offset 2
select a from t sort by b
select a from t distribute by a sort by b
select a from t cluster by a
select distinct a from t
select /*+ broadcast(u), repartition(3) */ t.a from t join u on t.b = u.b
select /*+ merge(u) */ t.a from t join u on t.b = u.b
select /*+ shuffle_hash(u) */ t.a from t join u on t.b = u.b
select /*+ repartition(3, a), coalesce(2) */ a from t
from t |> where b > 1 |> select a, b |> extend b * 2 as d |> aggregate sum(b) as s group by a |> order by a |> limit 3
from t |> set b = b + 1 |> drop c |> as x |> join u on x.b = u.b
from t select a, b where b > 1
select parse_json(a):x.y::string, variant_get(parse_json(a), '$.x', 'int') from t
select from_json(a, 'x INT, y STRING').x, to_json(s), get_json_object(a, '$.x'), from_json(a, 'x array<int>', map('mode', 'PERMISSIVE')) from t
select max(struct(b, a)).a from t
select sum(b) over (partition by a) / sum(b) over () from t
select percent_rank() over (order by b), ntile(3) over (order by b), lead(b, 1, 0) over (order by b), nth_value(b, 2) over (order by b), first_value(b) over (order by b), cume_dist() over (order by b), dense_rank() over (order by b), rank() over (order by b) from t
select count(*) from t having max(b) > 3
select (b, a) in (select b, a from u), (b, a) = (1, 'x') from t
select b = (select 1) from t
select greatest(b, c), least(b, c), pmod(b, 3), round(b, 1), ceil(b), floor(b), ceil(b, 1), pow(b, 2), sqrt(b), abs(b), sign(b), bround(b), log(2, b), hex(b), conv(a, 10, 16), mod(b, 2), b % 3, bit_count(b), width_bucket(b, 0, 10, 5), cbrt(b), e(), pi(), rint(c), div(b, 2) from t
select x.a from (select a, b from t order by b limit 1) x
select a as `x y`, 1 as `a.b`, "str" as s, 'it''s', r'raw\d', X'1F', 1L, 1.5BD, 1e3, 2.0f, 3Y, 4S, null, true from t
select concat_ws(',', arr), concat(a, 'x', b), array_contains(arr, 1), arrays_overlap(arr, arr), sequence(1, b), flatten(array(arr)), map_from_arrays(arr, arr), cardinality(arr), array_join(arr, ','), slice(arr, 1, 2), array_distinct(arr), sort_array(arr), reverse(arr), reverse(a), array_position(arr, 1), array_remove(arr, 1), array_append(arr, 1), array_insert(arr, 1, 2), array_compact(arr), map_concat(m, m), map_entries(m), map_keys(m), str_to_map(a), arrays_zip(arr, arr), array_repeat(a, 2), get(arr, 0), try_element_at(arr, 1) from t
table t
select a from t where a = 'x' limit all
select t.a from t, u where t.b = u.b and t.a > 'x' or not (t.b >= 2)
select count_if(b > 1), bool_and(b > 1), some(b > 1), approx_count_distinct(a), skewness(b), kurtosis(b), regr_slope(b, c), covar_pop(b, c), var_samp(b), bit_and(b), histogram_numeric(b, 3), grouping_id(a) from t group by a with rollup
select aes_decrypt(unhex(a), 'k'), sha2(a, 256), md5(a), hash(a, b), xxhash64(a), crc32(a), base64(cast(a as binary)), encode(a, 'utf-8'), mask(a), soundex(a), levenshtein(a, 'x'), luhn_check(a), regexp_extract(a, '(x)', 1), regexp_replace(a, 'x', 'y'), regexp_like(a, 'x'), translate(a, 'x', 'y'), initcap(a), lpad(a, 5, 'x'), repeat(a, 2), space(2), printf('%s', a), to_char(b, '999'), to_number(a, '999'), url_encode(a), parse_url(a, 'HOST'), elt(1, a, 'b'), find_in_set(a, 'x,y'), substring_index(a, '.', 1), split_part(a, '.', 1), contains(a, 'x'), startswith(a, 'x'), char_length(a), ascii(a), chr(65) from t
select d + interval '1' month, cast(d as date) + interval '1' year, cast(d as date) + interval 1 day, cast(d as date) + 1, cast(d as date) - 1, cast(d as date) - interval '3' day, cast(d as date) + interval '3' hour, d + interval '3' day, d - interval '1' year, d - cast(d as date), cast(d as date) - d, cast(d as date) - cast('2020-01-01' as date), interval '1' day + interval '2' day, interval '1' day * b, interval '1' year * c, interval '1' day / b, -interval '1' day, abs(interval '1' day), interval '1' year / b, extract(day from interval '3' day), extract(year from interval '3' year), extract(hours from d - d), extract(week from d), extract(dow from d), extract(doy from d), extract(quarter from d), extract(yearofweek from d), extract(dayofweek_iso from d), extract(minute from d), extract(second from d), d - d > interval '1' hour, make_dt_interval(1), sum(d - d) over (), avg(interval '1' day) over () from t
select unix_timestamp(d), unix_timestamp(), unix_timestamp(a, 'yyyy'), to_timestamp(a), to_timestamp(a, 'yyyy'), to_date(a), to_date(a, 'yyyy'), from_unixtime(b), from_utc_timestamp(d, 'UTC'), convert_timezone('UTC', d::timestamp_ntz), timestamp_seconds(b), date_from_unix_date(b), unix_micros(d), date_format(d, 'yyyy'), last_day(d), next_day(d, 'MO'), trunc(d, 'month'), dayname(d), monthname(d), weekofyear(d), weekday(d), hour(d), minute(d), second(d), year(d), month(d), day(d), dayofyear(d), quarter(d), make_date(1, 2, 3), make_timestamp(1, 2, 3, 4, 5, 6), d::timestamp_ntz, d::timestamp_ntz > d, add_months(d, 1), try_to_timestamp(a), try_to_date(a), cast(b as timestamp), d = '2020-01-01', d between '2020-01-01' and current_timestamp, d in ('2020-01-01'), current_timezone(), curdate() from t
select b + c, b * 1.5, c / 2, b / 2.5, b % 2.5, 1.5 + 2.25, cast(a as decimal(10,2)) * b, sum(cast(a as decimal(10,2))), avg(cast(a as decimal(10,2))), a + 1, a = 1, a in (1, 2), coalesce(b, c, 1.5), case when b > 1 then b else c end, greatest(b, 1.5), if(a is null, b, c), nvl2(a, b, c), round(1.5, 1), ceil(1.55, 1), floor(1.55, 1), try_divide(b, 0), try_add(b, 1), try_multiply(b, 2), try_subtract(b, 1), try_mod(b, 2), nanvl(c, 1), isnan(c), negative(b), positive(b), factorial(3), hypot(1, 2), atan2(1, 2), b between 1.5 and c, ifnull(a, 'x'), zeroifnull(b), nullifzero(b) from t group by a, b, c
select concat(arr, arr), arr || arr, array(1, 2.5, 3), map('a', 1, 'b', 2.5), map(1, 'x')[1], struct(a, b), struct(a as x, b as y).x, arr = array(1), array_union(arr, array(1L)), array_max(arr), array_min(arr), array_except(arr, arr), array_intersect(arr, arr), array_size(arr), array_prepend(arr, 1), forall(arr, x -> x > 0), reduce(arr, 0, (x, y) -> x + y), map_values(m), map_contains_key(m, 'x'), map_from_entries(array(struct('a', 1))), map_zip_with(m, m, (k, x, y) -> x + y), transform_values(m, (k, v) -> v + 1), s.y, array(s).x, array(s)[0].x, map('k', s)['k'].y, sequence(date '2020-01-01', date '2020-02-01', interval 1 day), explode_outer(arr) from t
select posexplode(arr), a from t
select posexplode_outer(arr), a from t
select inline_outer(array(s)), a from t
select v.* from t, lateral variant_explode(parse_json(a)) v
select e.* from t, lateral explode(t.arr) as e(x), lateral inline(array(t.s)) i
select is_variant_null(parse_json(a)), schema_of_variant(parse_json(a)), try_variant_get(parse_json(a), '$.x', 'string'), try_parse_json(a), to_variant_object(s), parse_json(a):x::int, cast(parse_json(a) as int), schema_of_json('{"a":1}'), json_object_keys(a), json_array_length(a), from_csv(a, 'x INT'), to_csv(s), schema_of_csv('1,2') from t
select a, b, count(*) from t group by a, b with cube
select a, sum(b) as s from t group by 1 order by 2
select coalesce(sum(b), 0), count(b), min(d), max(d), sum(c), avg(b), sum(distinct c), count(1), mean(c), stddev_pop(c), first_value(a), last_value(a), any(b > 1), min_by(a, b), collect_set(a), approx_percentile(c, array(0.5, 0.9)), percentile(c, 0.5), percentile_approx(c, 0.5), percentile_disc(0.5) within group (order by c), bit_xor(b), bit_or(b), try_avg(b), variance(c), var_pop(c), covar_samp(b, c), regr_count(b, c), regr_r2(b, c), regr_avgx(b, c), regr_intercept(b, c), std(c), max_by(a, b, 2), approx_top_k(a), collect_set(distinct a) from t
select a from t where b = (select max(u.b) from u where u.a = t.a)
select a from t where b > (select count(*) from u where u.a = t.a and u.b < t.b)
select a, (select count(*) from u where u.b = t.b) n from t
select x.n from t, lateral (select count(*) as n, max(u.c) as m from u where u.b = t.b) x
select x.c from t left join lateral (select u.c from u where u.b = t.b order by u.c limit 1) x
select a from t where not exists (select * from u where u.b = t.b) or b in (select b from u)
with a1 as (select a, b from t), a2 as (select a, b from a1 where b > 1), a3 as (select x.a from a1 x join a2 y on x.b = y.b) select * from a3 union all select a from a2
select a, lag(b, 1) ignore nulls over (order by d), sum(b) over (partition by a order by d rows between 2 preceding and 1 following), avg(c) over (partition by a order by d range between unbounded preceding and current row), count(distinct a) from t group by a, b, d, c
select date '2020-01-01' + 1, current_date - 7, current_timestamp - interval 1 hour, current_timestamp() - interval '15' minute, date_sub(current_date, 3), d > current_timestamp - interval 10 minutes, d >= now() - interval 1 day, date_diff(d, now()), date(d) = current_date(), timestamp(a), int(a), string(b), double(a), boolean(a), decimal(b), bigint(b), float(b), binary(a), tinyint(b), smallint(b) from t
