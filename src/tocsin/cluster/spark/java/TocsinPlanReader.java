import org.apache.spark.sql.catalyst.analysis.UnresolvedFunction;
import org.apache.spark.sql.catalyst.analysis.UnresolvedGenerator;
import org.apache.spark.sql.catalyst.analysis.UnresolvedRelation;
import org.apache.spark.sql.catalyst.analysis.UnresolvedTableValuedFunction;
import org.apache.spark.sql.catalyst.plans.logical.UnresolvedWith;
import org.apache.spark.sql.catalyst.parser.SqlBaseLexer;
import org.apache.spark.sql.catalyst.parser.UpperCaseCharStream;
import org.apache.spark.sql.catalyst.plans.logical.View;
import org.apache.spark.sql.catalyst.trees.TreeNode;

public final class TocsinPlanReader {
    private final java.util.LinkedHashSet found = new java.util.LinkedHashSet();
    private final java.util.IdentityHashMap seen = new java.util.IdentityHashMap();

    /** `start:end:channel ` for each token of a text. The default channel is 0; blanks and comments have another. */
    public String tokens(String text) {
        SqlBaseLexer lexer = new SqlBaseLexer(
            new UpperCaseCharStream(org.antlr.v4.runtime.CharStreams.fromString(text)));
        lexer.removeErrorListeners();
        StringBuilder listed = new StringBuilder();
        java.util.Iterator all = lexer.getAllTokens().iterator();
        while (all.hasNext()) {
            org.antlr.v4.runtime.Token token = (org.antlr.v4.runtime.Token) all.next();
            listed.append(token.getStartIndex()).append(':').append(token.getStopIndex() + 1);
            listed.append(':').append(token.getChannel()).append(' ');
        }
        return listed.toString();
    }

    /** A line for each different node: its class, the view that it is part of, its name; parts of a name end in \2. */
    public String walk(Object plan) {
        TocsinPlanReader walk = new TocsinPlanReader();
        walk.visit(plan, "");
        StringBuilder lines = new StringBuilder();
        java.util.Iterator all = walk.found.iterator();
        while (all.hasNext()) lines.append((String) all.next()).append('\n');
        return lines.toString();
    }

    private void visit(Object part, String view) {
        if (part instanceof TreeNode) {
            if (seen.put(part, part) == null) node((TreeNode) part, view);
        } else if (part instanceof scala.collection.IterableOnce) {
            each(((scala.collection.IterableOnce) part).iterator(), view);
        } else if (part instanceof scala.Product && part.getClass().getName().startsWith("scala.Tuple")) {
            each(((scala.Product) part).productIterator(), view);
        }
    }

    private void each(scala.collection.Iterator parts, String view) {
        while (parts.hasNext()) visit(parts.next(), view);
    }

    private void node(TreeNode node, String view) {
        String inner = view;
        String name = "";
        if (node instanceof UnresolvedFunction) {
            name = names(((UnresolvedFunction) node).nameParts());
        } else if (node instanceof UnresolvedTableValuedFunction) {
            name = names(((UnresolvedTableValuedFunction) node).name());
        } else if (node instanceof UnresolvedRelation) {
            name = names(((UnresolvedRelation) node).multipartIdentifier());
        } else if (node instanceof UnresolvedGenerator) {
            name = clean(((UnresolvedGenerator) node).name().unquotedString());
        } else if (node instanceof UnresolvedWith) {
            name = firsts(((UnresolvedWith) node).cteRelations());
        } else if (node instanceof View) {
            name = inner = clean(((View) node).desc().identifier().table());
        }
        found.add(node.getClass().getName() + '\u0001' + view + '\u0001' + name);
        each(node.productIterator(), inner);
        visit(node.children(), inner);
        visit(node.innerChildren(), inner);
    }

    private static String names(scala.collection.immutable.Seq parts) {
        StringBuilder joined = new StringBuilder();
        scala.collection.Iterator all = parts.iterator();
        while (all.hasNext()) joined.append(clean((String) all.next())).append('\u0002');
        return joined.toString();
    }

    private static String firsts(scala.collection.immutable.Seq tuples) {
        StringBuilder joined = new StringBuilder();
        scala.collection.Iterator all = tuples.iterator();
        while (all.hasNext()) {
            joined.append(clean((String) ((scala.Product) all.next()).productElement(0))).append('\u0002');
        }
        return joined.toString();
    }

    private static String clean(String name) {
        StringBuilder cleaned = new StringBuilder();
        for (int i = 0; i < name.length(); i++) {
            char character = name.charAt(i);
            cleaned.append(character < ' ' ? '\ufffd' : character);
        }
        return cleaned.toString();
    }
}
