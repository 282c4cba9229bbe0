import java.util.Arrays;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.ILike;
import org.apache.spark.sql.catalyst.expressions.Like;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.Lower;
import org.apache.spark.sql.catalyst.expressions.RLike;
import org.apache.spark.sql.catalyst.expressions.objects.StaticInvoke;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.unsafe.types.UTF8String;

/** Replaces RLIKE, LIKE and ILIKE by functions of TocsinPatterns where the pattern is not a constant of the query. */
public final class TocsinPatternGuard extends scala.runtime.AbstractPartialFunction {
    private final Class patterns;
    private final java.util.TreeSet unbounded = new java.util.TreeSet();

    public TocsinPatternGuard(Class patterns) {
        this.patterns = patterns;
    }

    /** The same object if there is nothing to replace. */
    public LogicalPlan guard(LogicalPlan analysed) {
        return (LogicalPlan) analysed.transformAllExpressionsWithSubqueries(this);
    }

    /** Expressions that `guard` found with a pattern that is not a constant, and could not replace. */
    public String unbounded() {
        return String.join(" ", unbounded);
    }

    public boolean isDefinedAt(Object part) {
        return part instanceof Expression;
    }

    public Object applyOrElse(Object part, scala.Function1 otherwise) {
        if (!(part instanceof Expression)) return otherwise.apply(part);
        Expression expression = (Expression) part;
        if (!isOpen(expression)) return expression;
        Expression text = child(expression, 0);
        Expression pattern = child(expression, 1);
        boolean isText = DataTypes.StringType.equals(text.dataType()) && DataTypes.StringType.equals(pattern.dataType());
        if (isText && expression instanceof RLike) {
            return call("find", new Expression[] {text, pattern});
        }
        if (isText && expression instanceof Like) {
            return call("like", new Expression[] {text, pattern, literal(((Like) expression).escapeChar())});
        }
        if (isText && expression instanceof ILike) {
            Expression escape = literal(((ILike) expression).escapeChar());
            return call("like", new Expression[] {new Lower(text), new Lower(pattern), escape});
        }
        unbounded.add(expression.prettyName());
        return expression;
    }

    /** True if a row gives the expression its pattern, or a part of it. */
    private static boolean isOpen(Expression expression) {
        String kind = expression.getClass().getSimpleName();
        int last = 0;
        if (PATTERN_SECOND.contains(kind)) {
            last = 1;
        } else if (kind.equals("StringToMap") || kind.equals("ParseUrl")) {
            last = 2;
        }
        for (int i = 1; i <= last && i < expression.children().length(); i++) {
            if (!child(expression, i).foldable()) return true;
        }
        return false;
    }

    private static final java.util.List PATTERN_SECOND = Arrays.asList(new String[] {
        "RLike", "Like", "ILike", "RegExpCount", "RegExpExtract", "RegExpExtractAll", "RegExpInStr", "RegExpReplace",
        "RegExpSubStr", "StringSplit"
    });

    private static Expression child(Expression expression, int index) {
        return (Expression) expression.children().apply(index);
    }

    private static Expression literal(char character) {
        return new Literal(UTF8String.fromString(String.valueOf(character)), DataTypes.StringType);
    }

    private Expression call(String function, Expression[] arguments) {
        scala.collection.immutable.Seq given =
            scala.jdk.javaapi.CollectionConverters.asScala(Arrays.asList(arguments)).toSeq();
        return new StaticInvoke(
            patterns, DataTypes.BooleanType, function, given, scala.collection.immutable.Nil$.MODULE$, true, false, true,
            scala.Option.empty());
    }
}
